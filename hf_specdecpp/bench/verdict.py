"""What a result means for its pair, in words."""

from __future__ import annotations

from typing import Any

from .summary import FEW

# Logits that differ by less may swap places when a pass over several tokens rounds otherwise than a pass over one.
NEAR = {"bfloat16": 1.0, "float16": 0.2, "float32": 0.001}


def verdict(result: dict[str, Any]) -> str:
    """Of each set of a result of `run_bench`, a paragraph and the conditions that it was measured under."""
    return "\n\n".join(
        f"{judged(found, result)}\n\nMeasured on {conditions(name, result)}." for name, found in result["sets"].items()
    )


def judged(found: dict[str, Any], result: dict[str, Any]) -> str:
    """The verdict on one set."""
    sentences = [*gain(found, result["unavailable"]), limit(found, result["costs"])]
    if "recommended" in found["methods"] and not result["configuration"]["sample"]:
        sentences.append(exactness(found, result["configuration"]["dtype"]))
    return " ".join(sentences)


def conditions(name: str, result: dict[str, Any]) -> str:
    """What a number of the set `name` cannot be read without."""
    asked, found = result["configuration"], result["sets"][name]
    low, high = found["prompt_tokens"]
    device = result["device"] if result["device"] != "cpu" else f"CPU with {counted(result['threads'], 'thread')}"
    repeats = max(asked["repeats"], 1)
    runs = f"{counted(repeats, 'timed run')} of each method in turn"
    mode = "sampling (temperature 1, top-k 50)" if asked["sample"] else "greedy"
    prompts = counted(found["prompts"], "prompt")
    if asked["minutes"] and found["prompts"] < found["asked"]:
        prompts = f"{found['prompts']} of {counted(found['asked'], 'prompt')} (in {asked['minutes']:g} minutes)"
    return (
        f"{name}, {mode}, {prompts} of {low} to {high} tokens, at most "
        f"{asked['max_new_tokens']} new tokens, {runs}, batch size 1, {asked['dtype']}, {device}, torch "
        f"{result['versions']['torch']}, transformers {result['versions']['transformers']}; medians over prompts with "
        f"{'their range' if found['prompts'] < FEW else '95 % bootstrap intervals'}"
    )


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def gain(found: dict[str, Any], unavailable: dict[str, str]) -> list[str]:
    """How SpecDec++ compares with plain decoding, and the others with it."""
    methods, sentences = found["methods"], []
    ours = methods.get("recommended")
    if ours is not None:
        low, high = ours["speedup_interval"]
        spread = "range" if found["prompts"] < FEW else "95 % interval"
        if found["prompts"] < FEW:
            meaning = f"but {counted(found['prompts'], 'prompt')} cannot tell whether it pays"
        elif low > 1:
            meaning = "it pays"
        elif high < 1:
            meaning = "it does not pay, so decode without it"
        else:
            meaning = "whether it pays cannot be told from these prompts"
        rates = [methods[name]["tokens_per_second"] for name in ("recommended", "plain")]
        sentences.append(
            f"With this pair SpecDec++ is {ours['speedup']:.2f}x plain decoding, {spread} {low:.2f} to "
            f"{high:.2f} ({rates[0]:.1f} against {rates[1]:.1f} tokens a second): {meaning}."
        )
    elif "recommended" in unavailable:
        sentences.append(f"SpecDec++ does not run with this pair ({unavailable['recommended']}).")
    others = []
    stock = [method for name, method in methods.items() if name.startswith("assisted")]
    if stock:
        best = max(stock, key=lambda method: method["speedup"])
        setting = best["label"].removeprefix("transformers assisted, ")
        chosen = f", the best of {len(stock)} on these prompts, which favours it" if len(stock) > 1 else ""
        others.append(f"transformers' best setting ({setting}{chosen}) {speed(best)}")
    elif any(name.startswith("assisted") for name in unavailable):
        others.append("transformers' assisted decoding does not run with this draft")
    others += [f"prompt lookup {speed(m)}" for name, m in methods.items() if name.startswith("lookup")]
    if "text" in methods:
        others.append(f"SpecDec++ without a draft {speed(methods['text'])}")
    if "compiled" in methods:
        others.append(f"plain decoding compiled {speed(methods['compiled'])}, with no draft at all")
    if others:
        sentences.append(f"For comparison: {'; '.join(others)}.")
    return sentences


def speed(method: dict[str, Any]) -> str:
    low, high = method["speedup_interval"]
    return f"{method['speedup']:.2f}x ({low:.2f} to {high:.2f})"


def limit(found: dict[str, Any], costs: dict[str, Any]) -> str:
    """What chains of the draft do not get past: hindsight, in a replay of recorded drafts with the measured costs."""
    share = costs["draft_seconds"] / costs["verify_seconds"][0]
    best, accepted = found["replay"]["oracle"]["speedup"], found["replay"]["first_acceptance"]
    pair = f"Your draft costs {share:.2f} of a target step and says the target's next token {accepted:.0%} of the time"
    if best < 1.02:
        return f"{pair}, so chains of it cannot pay here, whenever they stop: take a faster or a better draft."
    limits = (
        f"{pair}, which limits chains of it to about {best:.2f}x, even with perfect hindsight; trees and "
        "drafts from the text go beyond that."
    )
    chain = found["methods"].get("chain")
    if chain is not None and chain["speedup_interval"][0] > 1.1 * best:
        limits += " What was timed lies above that, so the machine was not quiet: measure again."
    return limits


def exactness(found: dict[str, Any], dtype: str) -> str:
    """Whether the output was plain decoding's own, and how close the choice was where it was not."""
    ours = found["methods"]["recommended"]
    equal = f"Its output equals plain decoding on {ours['equal_to_plain']} of {counted(found['prompts'], 'prompt')}"
    if not ours["differences"]:
        return f"{equal}."
    gaps = [d["logit_gap"] for d in ours["differences"]]
    if None in gaps or max(map(abs, gaps)) > NEAR[dtype]:
        return f"{equal}, and a difference is larger than rounding in {dtype} explains: please report it."
    largest = max(map(abs, gaps))
    return f"{equal}; elsewhere rounding decided a near-tie (the two logits differ by at most {largest:.2g})."
