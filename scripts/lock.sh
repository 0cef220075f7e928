#!/bin/sh
# Resolve pyproject.toml's ranges in fresh environments and write down what they gave.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/pip" install --quiet --upgrade pip
"$bin/python" scripts/install_torch.py
requirements() { "$bin/python" scripts/requirements.py "$1"; }
freeze() { "$bin/pip" freeze --exclude torch --exclude pip --exclude setuptools; }
requirements native > "$work/native.in"
"$bin/pip" install --quiet -r "$work/native.in"
{ echo "# made by scripts/lock.sh; torch is installed by scripts/install_torch.py"; freeze; } > requirements/native.lock
requirements dev > "$work/dev.in"
"$bin/pip" install --quiet -r "$work/dev.in" -r requirements/native.lock
{ echo "# made by scripts/lock.sh, on top of native.lock"; freeze | grep -vxFf requirements/native.lock; } > requirements/dev.lock
requirements bench > "$work/bench.in"
"$bin/pip" install --quiet -r "$work/bench.in" -r requirements/native.lock -r requirements/dev.lock
{ echo "# made by scripts/lock.sh, on top of dev.lock"; freeze | grep -vxFf requirements/native.lock | grep -vxFf requirements/dev.lock; } > requirements/bench.lock
"$python" -m venv "$work/tgi"
"$work/tgi/bin/pip" install --quiet "text-generation>=0.7,<0.8"
{ echo "# made by scripts/lock.sh"; "$work/tgi/bin/pip" freeze --exclude setuptools --exclude pip; } > requirements/tgi-client.lock
"$python" -m venv "$work/fastchat"
"$work/fastchat/bin/pip" install --quiet "fschat==0.2.36" "pydantic<2"
{ echo "# made by scripts/lock.sh"; "$work/fastchat/bin/pip" freeze --exclude setuptools --exclude pip; } > requirements/fastchat.lock
