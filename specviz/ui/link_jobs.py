"""The jobs that the link names, so that a reloaded page finds them again."""

from specviz.ui import query
from specviz.ui.requests import RunRequest, SweepRequest
from specviz.ui.workshop import Job, workshop


def current_run() -> Job | None:
    """The run of an own prompt, if the server still knows it."""
    job = workshop().job(query.run_from_link())
    return job if job is not None and isinstance(job.request, RunRequest) else None


def current_sweep() -> Job | None:
    """The job that records a set of prompts, likewise."""
    job = workshop().job(query.sweep_from_link())
    return job if job is not None and isinstance(job.request, SweepRequest) else None


def begin_run(request: RunRequest) -> None:
    query.put_shown_into_link("run")
    query.put_into_link(run=workshop().submit(request).id)


def begin_sweep(request: SweepRequest) -> None:
    query.put_into_link(sweep=workshop().submit(request).id)
