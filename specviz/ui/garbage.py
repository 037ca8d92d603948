"""Short collections of garbage, in an app that has large libraries in memory."""

import gc


def leave_out_what_lives() -> None:
    """From now on, collections look only at what is made after this.

    Streamlit collects after every run of a page, once a second while a page watches a job. Looking through everything
    that Streamlit, plotly and pandas have imported takes a tenth of a second and with torch and transformers a third,
    in which no other thread runs: neither the charts that wait to be sent nor the models. What is left out is still
    freed with its last reference; only cycles have to wait until this is called again.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
