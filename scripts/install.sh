#!/bin/sh
# Make .venv and install what is locked: `install.sh native` to serve, `install.sh dev` to test as well.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "Turnout needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2
  exit 1
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip="env PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install"
.venv/bin/python scripts/install_torch.py
$pip -r requirements/native.lock
$pip --no-deps --editable .
touch .venv/.native
[ "${1:-native}" = dev ] || exit 0
$pip -r requirements/dev.lock
# The client of TGI pins an old huggingface-hub: it gets an environment of its own.
[ -x .venv-tgi/bin/python ] || "$python" -m venv .venv-tgi
env PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-tgi/bin/python -m pip install -r requirements/tgi-client.lock
touch .venv/.dev
