# `make serve` and `make test` are all a stranger needs. Everything else is made of the same parts.
BIN := .venv/bin
MODEL := smollm2-135m-instruct
ON_ALL_CORES := --numprocesses auto --maxprocesses 4 --dist loadfile # a process takes up to 2.5 GB

.PHONY: serve test coverage check format model lock clean bench-backends chaos

serve: .venv/.native ## install what is locked, pull the model, serve on 127.0.0.1:8000
	@$(BIN)/turnout models pull $(MODEL)
	@exec $(BIN)/turnout serve --demo

test: .venv/.dev ## install what tests need, run the whole suite
	@$(BIN)/turnout models pull $(MODEL)
	$(BIN)/python -m pytest $(ON_ALL_CORES)

coverage: .venv/.dev ## the same, and say which lines and branches no test runs; it takes twice as long
	@$(BIN)/turnout models pull $(MODEL)
	$(BIN)/python -m pytest $(ON_ALL_CORES) --cov

check: .venv/.dev ## lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-backends: .venv/.dev ## hold the three local engines against each other; redraw docs/images/backends.svg
	@$(BIN)/python -m pip install --quiet -r requirements/bench.lock
	@$(BIN)/turnout models pull $(MODEL)
	$(BIN)/python -m benchmarks.bench_backends --output .turnout/bench/backends.json
	$(BIN)/python -m benchmarks.chart_backends .turnout/bench/backends.json docs/images/backends.svg

chaos: .venv/.dev ## kill clients, engine and gateways under load, and see that the books are right
	@$(BIN)/turnout models pull $(MODEL)
	$(BIN)/python -m benchmarks.chaos

lock: ## resolve anew what is installed
	scripts/lock.sh

.venv/.native: requirements/native.lock pyproject.toml
	@scripts/install.sh native

.venv/.dev: requirements/dev.lock requirements/native.lock requirements/tgi-client.lock requirements/fastchat.lock pyproject.toml
	@scripts/install.sh dev

clean:
	rm -rf .venv .venv-tgi .venv-fastchat .turnout
