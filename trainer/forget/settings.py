"""The settings of `python -m trainer forget`."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ForgetSettings:
    """Forgets documents: trains again from the last checkpoint before the first of them was read.

    The new run equals, to the bit on CPUs, the run that was started with `pretrain --leave_out`
    from the beginning. Start it with the launcher and the number of ranks of the run. The same
    command again continues it (docs/forgetting.md).

    Attributes:
        run: The folder of the run, or its --checkpoint.url. It is never changed.
        documents: A file of document ids, one in hex digits per line.
        output: The folder of the new run.
        plan: Whether to say what would be done, and do nothing.
        near_duplicates: The least similarity, 0.5 to 1, of documents that are named because they
            are nearly the same as a listed one. They are not forgotten unless they are listed too.
            To find them, all encoded documents (tokens/) are read; null does not look for them.
        data: Where the run's datasets are now, in the order of the run, if they were moved.
        checkpoint_url: Folder at an fsspec URL that checkpoints of the new run are uploaded to.
        cache_dir: Folder on a disk of this machine where indexes from documents to instances are
            cached. null means the run's cache_dir, or beambert in $XDG_CACHE_HOME.
        storage_options: Options of the filesystems of the runs and the datasets, as JSON or @FILE.
    """

    run: str
    documents: str
    output: str
    plan: bool = False
    near_duplicates: float | None = 0.8
    data: list[str] = field(default_factory=list)
    checkpoint_url: str | None = None
    cache_dir: str | None = None
    storage_options: str | None = None

    def __post_init__(self) -> None:
        threshold = self.near_duplicates
        if threshold is not None and not 0.5 <= threshold <= 1:
            raise ValueError(f"near_duplicates is {threshold}; it must be 0.5 to 1, or null")
