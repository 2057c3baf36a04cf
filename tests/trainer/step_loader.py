"""A `StepLoader` of keyword arguments, as `planned_steps` takes them."""

from dataclasses import fields

from trainer.stream.step import StepLoader, StepSizes, StreamPlan


def load_steps(data, split, seq_len, **options):
    """Begins to read; options are fields of StepSizes and StreamPlan, or StepLoader's own."""
    sizes, plan = (
        kind(
            **{
                field.name: options.pop(field.name)
                for field in fields(kind)
                if field.name in options
            }
        )
        for kind in (StepSizes, StreamPlan)
    )
    return StepLoader(data, split, seq_len, sizes, plan, **options)
