"""Runs training steps on DeepSpeed, and translates a ds_config.json into settings of a run."""
