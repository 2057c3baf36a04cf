#!/usr/bin/env bash
# Builds a dataset on Dataflow:
#
#   PROJECT=P REGION=R BUCKET=gs://bucket scripts/launch-dataflow.sh [flags of `python -m pipeline build`] [-- Beam options]
#
# Workers install this checkout (--setup_file), which takes minutes on each. Either of these has it installed already:
#   IMAGE=REGISTRY/beambert-worker:1    an image made from scripts/docker/beam-worker.Dockerfile
#   PREBUILD=REGISTRY                   Cloud Build makes one and puts it there, at the first job
# Who the workers are, if not the project's default account:
#   SERVICE_ACCOUNT=beambert@P.iam.gserviceaccount.com
# What the service may take, where it should not choose:
#   MACHINE_TYPE=n2-standard-4  DISK_GB=50  MAX_WORKERS=100
#   FLEXIBLE=1                          cheaper workers, which may be taken away; EACH job may start up to six hours later
# DRY_RUN=1 prints the command instead of running it. Beam options after -- come last and win.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${IMAGE:-}" ] && [ -n "${PREBUILD:-}" ]; then
    echo "error: IMAGE and PREBUILD both say where workers' code comes from; give one of them" >&2
    exit 2
fi
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
    [ -z "${PREBUILD:-}" ] || beam+=(--prebuild_sdk_container_engine=cloud_build "--docker_registry_push_url=$PREBUILD")
fi
[ -z "${SERVICE_ACCOUNT:-}" ] || beam+=("--service_account_email=$SERVICE_ACCOUNT")
[ -z "${MACHINE_TYPE:-}" ] || beam+=("--machine_type=$MACHINE_TYPE")
[ -z "${DISK_GB:-}" ] || beam+=("--disk_size_gb=$DISK_GB")
[ -z "${MAX_WORKERS:-}" ] || beam+=("--max_num_workers=$MAX_WORKERS")
[ -z "${FLEXIBLE:-}" ] || beam+=(--flexrs_goal=COST_OPTIMIZED)
command=(python -m pipeline build "${own[@]}" -- "${beam[@]}" "$@")
if [ -n "${DRY_RUN:-}" ]; then
    printf '%q ' "${command[@]}"
    echo
else
    exec "${command[@]}"
fi
