"""Order of the examples in the gallery: from a first fit to own programs."""

from __future__ import annotations

from pathlib import Path

ORDER = (
    "plot_dask_arrays.py",
    "plot_convergence.py",
    "plot_gantt.py",
    "plot_butterfly.py",
    "plot_sparse_regression.py",
    "plot_recommendations.py",
    "plot_rotation_program.py",
    "plot_factor_broadcast.py",
    "plot_metric_learning.py",
    "plot_topics.py",
    "plot_gibbs_topics.py",
    "plot_denoising.py",
    "plot_mpca_images.py",
    "plot_torch_module.py",
    "plot_run_spmd.py",
    "plot_scheduled_program.py",
    "plot_factor_model.py",
)


class TeachingOrder:
    """Sort key of Sphinx-Gallery; examples that are not listed come last, by name."""

    def __init__(self, src_dir: str) -> None:
        self.src_dir = src_dir

    def __repr__(self) -> str:
        return "<TeachingOrder>"

    def __call__(self, filename: str) -> tuple[int, str]:
        """Place of an example."""
        name = Path(filename).name
        return (ORDER.index(name) if name in ORDER else len(ORDER), name)
