# The launcher of builds on Dataflow, as a container job: the worker image with scripts/launch-dataflow.sh.
#   docker build -f scripts/docker/launcher.Dockerfile --build-arg WORKER=REGISTRY/beambert-worker:1 \
#       -t REGISTRY/beambert-launcher:1 .
#   docker run -e PROJECT=P -e REGION=R -e BUCKET=gs://bucket -e IMAGE=REGISTRY/beambert-worker:1 \
#       REGISTRY/beambert-launcher:1 --config configs/data/bert.yaml --input 'gs://bucket/text/*.jsonl' \
#       --output gs://bucket/data -- --running_job=wait
# It keeps nothing that a restart needs: all state is in the output. TMPDIR must have 45 bytes per document, and 36 per
# block of the shards.
ARG WORKER=beambert-worker:1
FROM ${WORKER}
# Away from the sources: python -m would import them, without their compiled modules, before what was installed.
WORKDIR /launcher
COPY configs configs
COPY scripts/launch-dataflow.sh scripts/launch-dataflow.sh
ENTRYPOINT ["/launcher/scripts/launch-dataflow.sh"]
