# The image of a Flex Template (scripts/dataflow/write_tokens.py): the worker image with Dataflow's template launcher.
#   docker build -f scripts/docker/flex-template.Dockerfile --build-arg WORKER=REGISTRY/beambert-worker:1 \
#       -t REGISTRY/beambert-write-tokens:1 .
ARG WORKER=beambert-worker:1
FROM gcr.io/dataflow-templates-base/python311-template-launcher-base AS template_launcher
FROM ${WORKER}
COPY --from=template_launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher
COPY scripts/dataflow/write_tokens.py /template/write_tokens.py
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/write_tokens.py
ENTRYPOINT ["/opt/google/dataflow/python_template_launcher"]
