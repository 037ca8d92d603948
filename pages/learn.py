"""Learn: speculative decoding in eight steps, each with a figure to move and a question."""

import numpy as np
import streamlit as st

from specviz.ui.advice import advice_of
from specviz.ui.charts import chart
from specviz.ui.gallery import list_items
from specviz.ui.glossary import define
from specviz.ui.lesson_figures import draft_cost_figure, iid_figure, pass_time_figure, pass_times
from specviz.ui.library import ShownSet, gallery_recording
from specviz.ui.live_panel import live_panel, settled

items = list_items()
known = [name for name, info in items.items() if info.known]
unknown = [name for name, info in items.items() if not info.known]


@st.fragment
def figure(step: int, name: str, parts: tuple[str, ...], tau: float, max_draft: int = 5, ghosts: bool = False) -> None:
    """The live panel on a gallery item, with only these parts."""
    shown = gallery_recording(name)
    key = f"lesson-{step}"
    chosen = min(settled(key, tau, max_draft)[1], shown.longest_draft)
    live_panel(
        key=key,
        item=shown.name,
        recording=shown.packed_recording(),
        rounds=shown.packed_rounds(chosen),
        tau=tau,
        draft_lengths=shown.draft_lengths,
        about=shown.about(),
        parts=parts,
        ghosts=ghosts,
    )


def question(words: str) -> None:
    st.markdown(f"**Try it.** {words}")


st.title("How speculative decoding works")
st.caption("Eight steps, ten minutes. Every figure is a real recording; move it, and it answers.")
if not known or not unknown:
    st.info("The lessons need the gallery's recordings, and they are not there. Reinstall SpecViz to get them back.")
    st.stop()
main, other = known[0], unknown[0]
shown = gallery_recording(main)
longest = min(shown.longest_draft, 16)
pass_mode = shown.recording.settings.get("pass_mode")

st.header("1. Why checking is nearly free")
st.markdown(
    "A language model writes one token at a time, and for each of them reads all its weights from memory. That reading "
    "takes most of the time. A pass over five tokens reads the weights once as well, so it takes hardly longer than a "
    "pass over one. Whoever could *guess* the next tokens could have them all checked for the price of one."
)
if shown.cost is not None:

    @st.fragment
    def checking() -> None:
        widths, milliseconds = pass_times(shown.cost, pass_mode)
        tokens = st.slider(
            "Tokens in one pass",
            1,
            int(widths[-1]),
            min(5, int(widths[-1])),
            help=define("tokens_in_a_pass"),
            key="lesson-width",
        )
        chart(pass_time_figure(shown.cost, pass_mode, tokens), "lesson-passes", 340)
        taken = float(np.interp(tokens, widths, milliseconds))
        st.text(
            f"A pass over {tokens} takes {taken:.1f} ms, {taken / milliseconds[0]:.2f} times as long as over one: "
            f"{taken / tokens:.1f} ms a token."
        )

    checking()
question("How many tokens fit into one pass before it takes twice as long as a pass over one?")

st.header("2. What a round is")
st.markdown(
    "A small *draft* model guesses a few tokens, one after the other. The large *target* model then checks them all in "
    "one pass, from left to right. Guesses that it would have written itself are accepted. The first one that "
    "it would not "
    "is rejected, whatever came after it is discarded, and the target's own token takes its place. Then the next "
    "round begins. The text is what the target would have written alone, "
    "but for ties so near that rounding decides them."
)
figure(2, main, ("play", "strip"), 0.3, ghosts=True)
question("Press play. Who writes the last token of every round, and how long can a round be at most?")

st.header("3. What the threshold does")
st.markdown(
    "A guess that will be rejected costs a draft step and everything guessed after it. The draft says how sure "
    "it is of "
    "each token: its *confidence*, the probability it gives to its own first choice. With a threshold τ it "
    "stops guessing "
    "as soon as its confidence does not exceed τ."
)
figure(3, main, ("readouts", "slider", "changes", "strip"), 0.2, ghosts=True)
question("Find the lowest threshold at which nothing is struck out any more. How fast is that, compared with the best?")

st.header("4. Why confidence is not certainty")
st.markdown(
    "The threshold judges tokens before the target has seen them, and it errs both ways: it lets wrong tokens pass, "
    "and it withholds tokens that the target would have accepted. The bars over the line are positions at which the "
    "draft was right, those under it positions at which it was wrong. No cut parts them cleanly."
)
figure(4, main, ("slider", "classifier", "numbers"), 0.5)
question("At which threshold are as many tokens wrongly withheld as rejected? Is that where it is fastest?")

st.header("5. Easy stretches and hard ones")
st.markdown(
    "Some tokens follow from those before: the rest of a word, the end of a phrase, a copied name. There the "
    "draft is sure, "
    "and right. Where the text takes a turn, its confidence drops. Easy and hard places come in stretches, which is "
    "exactly what a threshold can use and a fixed draft length cannot."
)
figure(5, other, ("slider", "strip", "lane"), 0.4)
question(
    "Point at the lowest bars. What do these tokens have in common? Open a card: how uncertain is the target there?"
)

st.header("6. What γ costs")
st.markdown(
    "γ is the most that is guessed in a round. If every guess were accepted with one fixed probability α, "
    "independently "
    "of all others, a target pass would yield on average"
)
st.latex(r"\mathbb{E}[\text{tokens per pass}] = \frac{1-\alpha^{\gamma+1}}{1-\alpha}")
st.markdown("tokens. Real acceptances come in runs, so the formula with this recording's own α misses the recording:")
chart(iid_figure(shown, longest), "lesson-iid", 360)
figure(6, main, ("readouts", "slider", "gamma", "curve", "numbers"), 0.4)
question("With the threshold at 0, which γ is fastest? And with the threshold at its best: does γ still matter?")

st.header("7. What limits the speedup")
st.markdown(
    "Each round pays for one target pass and for every draft step, whether or not its token is used. With a "
    "draft step that "
    "takes *c* target passes, and nothing else taking time, *N* tokens in *R* rounds with *D* draft steps give"
)
st.latex(r"\text{speedup} = \frac{N}{R + c\,D}")


@st.fragment
def draft_cost() -> None:
    left, right = st.columns(2, gap="large")
    cost = left.slider(
        "c, a draft step in target passes", 0.0, 1.0, 0.2, 0.01, help=define("draft_cost"), key="lesson-cost"
    )
    tau = right.slider("Threshold τ", 0.0, 1.0, 0.3, 0.01, help=define("threshold"), key="lesson-cost-tau")
    chart(draft_cost_figure(shown, tau, cost, longest), "lesson-cost-figure", 360)


draft_cost()
question(
    "With the threshold at 0, how expensive may a draft step become before every γ loses? "
    "And with the threshold at 0.5?"
)

st.header("8. When to switch it off")
st.markdown(
    "Speculation pays when guesses are good and cheap. On text that the draft does not know, on a device where "
    "a pass over "
    "five tokens takes five times as long, or in a large batch, it can be slower than plain decoding. "
    "A threshold near 1 limits the damage but does not undo it: the draft steps that found nothing are paid for."
)
figure(8, other, ("readouts", "slider", "gamma", "curve", "numbers"), 0.0)
if gallery_recording(other).cost is not None:
    st.text(advice_of(ShownSet("", (gallery_recording(other),))).text)
question("Is there a threshold at which this text is faster than plain decoding? At which is it slowest?")
