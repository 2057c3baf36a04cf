# Sourced by the scripts beside it and by people, from bash or zsh: makes or reuses the virtual environment
# ${VENV:-.venv} of this checkout. Installs again only when pyproject.toml, constraints.txt or C sources changed, or
# what was compiled from them is gone.
# Leaves $PYTHON and puts the environment on PATH.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd)
VENV=${VENV:-$ROOT/.venv}

find_python() {
    local name
    for name in "${BASE_PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "error: Python 3.11 or later is needed; install it or set BASE_PYTHON to one" >&2
    return 1
}

compiled_modules() {
    local soabi
    soabi=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))' 2>/dev/null || true)
    find tokenizer pipeline trainer -name "*.$soabi.so"
}

describe_checkout() {
    (
        cd "$ROOT"
        echo "$ROOT" "${EXTRAS:-}"
        compiled_modules | sort
        cat pyproject.toml constraints.txt
        find tokenizer pipeline trainer -name '*.[ch]' -print0 | sort -z | xargs -0 cat
    ) | { sha256sum 2>/dev/null || shasum -a 256; } | cut -d' ' -f1 # macOS has the second
}

prepare_environment() {
    local base
    if [ "$(cat "$VENV/.beambert-installed" 2>/dev/null)" != "$(describe_checkout)" ]; then
        base=$(find_python) || return 1
        echo "installing into $VENV (once, some minutes)" >&2
        [ -x "$VENV/bin/python" ] || "$base" -m venv "$VENV" || return 1
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv || return 1
        # uv keeps what it unpacked, so a second environment takes seconds. It does not read pip's settings: a mirror is
        # named by UV_DEFAULT_INDEX. It trusts the certificates that the machine does.
        UV_SYSTEM_CERTS=1 "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --reinstall-package beambert \
            --constraint "$ROOT/constraints.txt" --editable "$ROOT[${EXTRAS:-pipeline,trainer,dev}]" || return 1
        describe_checkout >"$VENV/.beambert-installed"
    fi
    # git writes sources anew whose content stayed, and a module older than its source is not used
    # (tokenizer/compiled.py). The stamp says that these modules are of these sources.
    (cd "$ROOT" && compiled_modules | while read -r module; do touch "$module"; done)
    PYTHON=$VENV/bin/python
    export PATH="$VENV/bin:$PATH"
    # DeepSpeed builds its operators here, if it ever needs one: never in a folder shared with other environments.
    export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$VENV/torch-extensions}
}

prepare_environment
