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
export PIP_DISABLE_PIP_VERSION_CHECK=1
pip=".venv/bin/python -m pip install --quiet"
echo "Installing torch …"
.venv/bin/python scripts/install_torch.py
echo "Installing what requirements/native.lock lists …"
$pip -r requirements/native.lock
$pip --no-deps --editable .
touch .venv/.native
[ "${1:-native}" = dev ] || exit 0
echo "Installing what tests need …"
$pip -r requirements/dev.lock
# The client of TGI pins an old huggingface-hub: it gets an environment of its own.
[ -x .venv-tgi/bin/python ] || "$python" -m venv .venv-tgi
.venv-tgi/bin/python -m pip install --quiet -r requirements/tgi-client.lock
# FastChat's streams break on pydantic 2: so does it. Its controller and API server need no torch.
[ -x .venv-fastchat/bin/python ] || "$python" -m venv .venv-fastchat
.venv-fastchat/bin/python -m pip install --quiet -r requirements/fastchat.lock
touch .venv/.dev
