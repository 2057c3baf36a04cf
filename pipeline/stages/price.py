"""What a planned build costs, by prices that the user gives (configs/prices)."""

from pipeline.settings import Prices
from pipeline.stages.plan import BuildPlan

_GB = 1e9


def format_price(
    plan: BuildPlan, prices: Prices, workers: int, passes: int, *, shuffles: bool
) -> str:
    """One line: the dollars of a build, of what they consist, and those that its data then takes a month.

    Args:
        plan: What is built.
        prices: US dollars of each thing.
        workers: How many worker processes start.
        passes: How often the corpus is masked.
        shuffles: Whether buckets come together by a shuffle of the runner.
    """
    hours = plan.cpu_seconds(workers) / 3600
    reads, writes = plan.reads(shuffles=shuffles), plan.writes
    shuffled = plan.token_bytes / _GB if shuffles else 0.0
    dollars = {
        f"{hours:,.3g} core-hours of a core as fast as this one": hours * prices.core_and_its_share,
        f"{reads:,} reads and {writes:,} writes": (
            reads * prices.reads_1000 + writes * prices.writes_1000
        )
        / 1000,
    }
    if shuffled and prices.shuffle_gb is not None:
        dollars[f"a shuffle of {shuffled:,.3g} GB"] = shuffled * prices.shuffle_gb
    kept = plan.shard_bytes(passes) / _GB
    rows = [
        f"cost: ${sum(dollars.values()):,.2f} by the prices of {prices.name}:",
        ", ".join(f"${each:,.2f} for {what}" for what, each in dollars.items()) + ";",
        f"then ${kept * prices.storage_gb_month:,.2f} a month for {kept:,.3g} GB of shards,",
        f"and ${plan.token_bytes / _GB * prices.storage_gb_month:,.2f} a month for the tokens until they are deleted",
    ]
    if shuffled and prices.shuffle_gb is None:
        rows.append(
            f"; the prices leave out the shuffle of {shuffled:,.3g} GB: give --prices.shuffle_gb"
        )
    return " ".join(rows).replace(" ;", ";")
