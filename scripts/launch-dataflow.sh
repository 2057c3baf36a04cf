#!/usr/bin/env bash
# Builds a dataset on Dataflow:
#
#   PROJECT=P REGION=R BUCKET=gs://bucket scripts/launch-dataflow.sh [flags of `python -m pipeline build`] [-- Beam options]
#
# Workers install this checkout (--setup_file), which takes minutes on each; IMAGE=REGISTRY/beambert-worker:1, made from
# scripts/docker/beam-worker.Dockerfile, has it installed already. DRY_RUN=1 prints the command instead of running it.
set -euo pipefail
cd "$(dirname "$0")/.."

for name in PROJECT REGION BUCKET; do
    if [ -z "${!name:-}" ]; then
        echo "error: set $name; the first lines of $0 say how" >&2
        exit 2
    fi
done
own=()
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
    own+=("$1")
    shift
done
[ $# -eq 0 ] || shift
beam=(--runner=DataflowRunner "--project=$PROJECT" "--region=$REGION" "--temp_location=$BUCKET/tmp"
    "--staging_location=$BUCKET/staging")
if [ -n "${IMAGE:-}" ]; then
    beam+=("--sdk_container_image=$IMAGE" --sdk_location=container)
else
    beam+=(--setup_file=./pyproject.toml)
fi
command=(python -m pipeline build "${own[@]}" -- "${beam[@]}" "$@")
if [ -n "${DRY_RUN:-}" ]; then
    printf '%q ' "${command[@]}"
    echo
else
    exec "${command[@]}"
fi
