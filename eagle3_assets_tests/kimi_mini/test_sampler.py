"""The sampler: its forward pass is transformers', its chance is the seed's, its rows do not see each other."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from eagle3_assets_tests.kimi_mini.random_weights import random_model
from kimi_mini import sampler as sampling
from kimi_mini.decoder import ATTENTION_STEP, MIN_ROWS, PREFILL_CHUNK, Decoder
from kimi_mini.errors import KimiMiniError
from kimi_mini.model import config
from kimi_mini.sampler import Ask, Sample, Sampler, choose, sample_all, uniforms
from kimi_mini.tokenizer import N_BASE, special_tokens

END = special_tokens()["<|im_end|>"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights, with a head sharp enough that a nucleus is small and an end comes now and then."""
    model = random_model(3)
    with torch.no_grad():
        model.lm_head.weight *= 4.0
        model.lm_head.weight[END] *= 1.5
    return model


@pytest.fixture(scope="module")
def plain() -> Any:
    """Random weights as they are: the scale of logits that differences are stated for."""
    return random_model(3)


def prompt(seed: int, length: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(N_BASE) for _ in range(length)]


def full_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


# ------------------------------------------------------------------------------------------------ forward pass
@pytest.mark.parametrize("length", [1, 2, 47, 48, PREFILL_CHUNK, PREFILL_CHUNK + 1, 2 * PREFILL_CHUNK + 100])
def test_prefill_gives_the_last_logits_of_the_full_forward(length: int, plain: Any) -> None:
    ids = prompt(length, length)
    mine, theirs = Decoder(plain, 1).prefill(0, ids), full_logits(plain, ids)[-1]
    assert (mine - theirs).abs().max() < 1e-4
    assert mine.argmax() == theirs.argmax()


def decode_all(decoder: Decoder, rows: list[tuple[list[int], list[int]]]) -> list[list[torch.Tensor]]:
    """Logits of every continuation, row by row, decoded side by side."""
    for slot, (head, _) in enumerate(rows):
        decoder.prefill(slot, head)
    steps = [decoder.decode([tail[k] for _, tail in rows], [len(head) + k for head, _ in rows]) for k in range(len(rows[0][1]))]
    return [[step[row] for step in steps] for row in range(len(rows))]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[30], [3, 200, 60, 2, 31, 120, 33, 64, 500, 17]])
def test_token_by_token_decoding_gives_the_logits_of_the_full_forward(lengths: list[int], plain: Any) -> None:
    rows = [(prompt(length, length), prompt(length + 1, 20)) for length in lengths]
    for (head, tail), mine in zip(rows, decode_all(Decoder(plain, len(rows)), rows), strict=True):
        theirs = full_logits(plain, head + tail)[len(head) :]
        assert (torch.stack(mine) - theirs).abs().max() < 1e-4
        assert torch.equal(torch.stack(mine).argmax(-1), theirs.argmax(-1))


def test_other_sizes_two_shared_experts_and_unnormalised_routing_are_taken_from_the_config() -> None:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    other = {
        "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 24,
        "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "moe_intermediate_size": 16,
        "n_routed_experts": 6, "num_experts_per_tok": 3, "n_shared_experts": 2, "routed_scaling_factor": 2.5,
        "norm_topk_prob": False, "first_k_dense_replace": 2, "intermediate_size": 40, "vocab_size": 300,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-3, "head_dim": 8, "pad_token_id": 0,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small = DeepseekV3ForCausalLM(DeepseekV3Config(**{**config().to_dict(), **other})).eval()
        for tensor in small.state_dict().values():
            torch.nn.init.normal_(tensor, 0.5 if tensor.ndim == 1 else 0.0, 0.3)
    ids = [k * 7 % 300 for k in range(90)]
    decoder = Decoder(small, 1)
    (mine,) = decode_all(decoder, [(ids[:60], ids[60:])])
    assert (torch.stack(mine) - full_logits(small, ids)[60:]).abs().max() < 1e-4
    assert decoder.cache_bytes == 3 * MIN_ROWS * 128 * 28 * 4


def test_a_config_that_the_forward_pass_does_not_cover_is_refused() -> None:
    odd = config()
    odd.n_group = 2
    with pytest.raises(KimiMiniError, match=r"config\.n_group is 2, expected 1"):
        from kimi_mini.decoder import shape_of

        shape_of(odd)


# ------------------------------------------------------------------------------------------------ rows do not see each other
def asks(count: int, **more: Any) -> list[Ask]:
    rng = Random(count)
    settings = [(0.0, 1.0), (0.6, 1.0), (1.0, 0.95), (1.3, 0.9), (1.0, 1.0)]
    return [
        Ask(prompt(k, rng.randint(1, 150)), *settings[k % 5], **{"seed": k, "max_tokens": rng.randint(1, 40), **more})
        for k in range(count)
    ]


@pytest.fixture(scope="module")
def crowd(model: Any) -> list[Sample]:
    return sample_all(model, asks(40), slots=16)


@pytest.mark.slow
def test_a_sample_is_the_same_bits_alone_in_a_crowd_and_in_any_order(model: Any, crowd: list[Sample]) -> None:
    wanted = asks(40)
    order = list(range(40))
    Random(1).shuffle(order)
    shuffled = sample_all(model, [wanted[k] for k in order], slots=11)
    assert dict(zip(order, shuffled, strict=True)) == dict(enumerate(crowd))
    for k in (0, 3, 17, 39):
        assert sample_all(model, [wanted[k]], slots=1) == [crowd[k]]


@pytest.mark.slow
def test_a_longer_neighbour_changes_no_bit(model: Any) -> None:
    mine = Ask(prompt(7, 40), seed=7, max_tokens=30)
    (alone,) = sample_all(model, [mine])
    beside = [Ask(prompt(k, length), seed=k, max_tokens=40) for k, length in enumerate((3 * ATTENTION_STEP, 300, 700))]
    assert sample_all(model, [*beside, mine])[-1] == alone


def test_another_seed_gives_another_answer_and_the_same_seed_the_same(model: Any) -> None:
    several = sample_all(model, [Ask(prompt(1, 20), 1.3, 1.0, seed, 20) for seed in (5, 6, 5, -5, 10**40)])
    assert several[0] == several[2]
    assert len({sample.ids for sample in several}) == 4


@pytest.mark.slow
def test_log_probabilities_are_the_models_own_at_temperature_one(model: Any, crowd: list[Sample]) -> None:
    for ask, sample in list(zip(asks(40), crowd, strict=True))[:10]:
        logits = full_logits(model, [*ask.prompt_ids, *sample.ids])[len(ask.prompt_ids) - 1 : -1]
        theirs = logits.log_softmax(-1).gather(1, torch.tensor(sample.ids)[:, None])[:, 0]
        assert (torch.tensor(sample.logprobs) - theirs).abs().max() < 1e-4


def test_temperature_zero_takes_the_most_probable_id_every_time(model: Any, crowd: list[Sample]) -> None:
    for ask, sample in list(zip(asks(40), crowd, strict=True))[::5]:
        logits = full_logits(model, [*ask.prompt_ids, *sample.ids])[len(ask.prompt_ids) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(sample.ids)


def test_an_answer_ends_with_its_end_id_or_at_its_length(crowd: list[Sample]) -> None:
    reasons = {"stop": 0, "length": 0}
    for ask, sample in zip(asks(40), crowd, strict=True):
        reasons[sample.finish_reason] += 1
        assert END not in sample.ids[:-1]
        assert len(sample.logprobs) == len(sample.ids) <= ask.max_tokens
        if sample.finish_reason == "stop":
            assert sample.ids[-1] == END
        else:
            assert sample.ids[-1] != END and len(sample.ids) == ask.max_tokens
    assert min(reasons.values()) >= 3


def test_progress_counts_what_ended(model: Any) -> None:
    seen: list[tuple[int, int]] = []
    sample_all(model, asks(6), slots=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1] == (6, 6)


# ------------------------------------------------------------------------------------------------ chance
def test_the_stream_of_a_seed_never_changes() -> None:
    assert uniforms(0, 3).tolist() == pytest.approx(STREAM_OF_SEED_0, abs=0)
    assert uniforms(0, 50)[:3].tolist() == uniforms(0, 3).tolist()
    many = np.concatenate([uniforms(seed, 100) for seed in range(200)])
    assert many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01 and abs(many.std() - math.sqrt(1 / 12)) < 0.005


STREAM_OF_SEED_0 = [0.7291503535725254, 0.3850795404425523, 0.5788047324189138]


def by_hand(logits: np.ndarray[Any, Any], temperature: float, top_p: float) -> np.ndarray[Any, Any]:
    """The distribution that a setting means, in float64."""
    if temperature == 0:
        return np.eye(len(logits))[logits.argmax()]
    p = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1] if top_p < 1 else order
    out = np.zeros_like(p)
    out[kept] = p[kept]
    return out / out.sum()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_draws_follow_the_distribution_that_the_settings_mean(temperature: float, top_p: float, spread: float) -> None:
    vocab, draws = 1_000, 4_000
    logits = (torch.randn(vocab, generator=torch.Generator().manual_seed(1)) * spread).float()
    rows = logits.expand(draws, vocab).contiguous()
    uniform = torch.from_numpy(
        (np.arange(draws) + 0.5) / draws
    )  # every part of the unit interval once: no chance left in the test
    setting = torch.full((draws,), temperature, dtype=torch.float64), torch.full((draws,), top_p, dtype=torch.float64)
    ids, logprobs = choose(rows, *setting, uniform)
    expected = by_hand(logits.numpy(), temperature, top_p)
    found = np.bincount(ids.numpy(), minlength=vocab) / draws
    assert np.abs(found - expected).max() <= 1.01 / draws  # a stratified draw misses a probability by less than one cell
    assert expected[ids.numpy()].min() > 0
    assert torch.equal(logprobs, logits.log_softmax(-1)[ids])


def test_rows_of_one_step_have_their_own_settings() -> None:
    logits = torch.randn(7, 600, generator=torch.Generator().manual_seed(2)) * 2
    temperature = torch.tensor([0.0, 0.5, 1.0, 1.0, 2.0, 0.0, 1e-30], dtype=torch.float64)
    top_p = torch.tensor([1.0, 0.9, 1.0, 0.2, 0.99, 0.1, 1.0], dtype=torch.float64)
    uniform = torch.linspace(0.05, 0.999, 7, dtype=torch.float64)
    together, _ = choose(logits, temperature, top_p, uniform)
    apart = [choose(*(x[k : k + 1] for x in (logits, temperature, top_p, uniform)))[0].item() for k in range(7)]
    assert together.tolist() == apart
    assert [together[k] for k in (0, 5, 6)] == [logits[k].argmax() for k in (0, 5, 6)]


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("top_p", [0.7, 1.0])
def test_the_ends_of_the_unit_interval_draw_an_id_that_can_be(uniform: float, top_p: float) -> None:
    logits = torch.full((1, 400), -200.0)
    logits[0, [5, 200, 399]] = torch.tensor([1.0, 2.0, -300.0])
    settings = (torch.tensor([value], dtype=torch.float64) for value in (1.0, top_p, uniform))
    assert choose(logits, *settings)[0].item() in (5, 200)


# ------------------------------------------------------------------------------------------------ asks that cannot be
@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (Ask(prompt(0, 64)), "the prompt has 64 tokens, expected fewer than 64"),
        (Ask([]), "prompt_ids"),
        (Ask([1, 10**6]), "prompt_ids"),
        (Ask([1], temperature=-0.5), "temperature is -0.5"),
        (Ask([1], temperature=math.nan), "temperature is nan"),
        (Ask([1], top_p=1.5), "top_p is 1.5"),
        (Ask([1], max_tokens=0), "max_tokens is 0"),
    ],
)
def test_an_ask_that_cannot_be_served_is_one_line_and_harms_no_other(ask: Ask, words: str, model: Any) -> None:
    with Sampler(model, slots=2, positions=64) as sampler:
        good, bad = sampler.submit(Ask([1, 2], max_tokens=3)), sampler.submit(ask)
        with pytest.raises(KimiMiniError, match=words):
            bad.result(timeout=60)
        assert len(good.result(timeout=60).ids) == 3
    with pytest.raises(KimiMiniError, match=f"^ask 1: .*{words}"):
        sample_all(model, [Ask([1]), ask], positions=64)


def test_an_answer_stops_where_the_context_is_full(model: Any) -> None:
    (sample,) = sample_all(model, [Ask(prompt(4, 50), seed=1, max_tokens=1_000)], positions=64)
    assert (len(sample.ids), sample.finish_reason) == (14, "length")


# ------------------------------------------------------------------------------------------------ the worker thread
@pytest.mark.slow
def test_asks_from_many_threads_come_back_as_sample_all_gives_them(model: Any, crowd: list[Sample]) -> None:
    wanted, found = asks(40), {}

    def submit(k: int) -> None:
        found[k] = sampler.submit(wanted[k]).result(timeout=120)

    with Sampler(model, slots=8) as sampler:
        threads = [threading.Thread(target=submit, args=(k,)) for k in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found[k] for k in range(40)] == crowd


@pytest.mark.slow
def test_the_longest_row_does_not_hold_the_others(model: Any) -> None:
    ended: list[str] = []
    draws = [Ask(prompt(1, 10), seed=seed, max_tokens=120) for seed in range(40)]
    long, alone = next((ask, row) for ask, row in zip(draws, sample_all(model, draws), strict=True) if len(row.ids) == 120)
    with Sampler(model, slots=2) as sampler:
        futures = {"long": sampler.submit(long)}
        futures |= {f"short {k}": sampler.submit(Ask(prompt(k, 10), seed=k, max_tokens=5)) for k in range(12)}
        for name, future in futures.items():
            future.add_done_callback(lambda _, name=name: ended.append(name))
        assert futures["long"].result(timeout=60) == alone
        for future in futures.values():
            future.result(timeout=60)
    assert ended[-1] == "long"


def test_a_fault_of_the_worker_reaches_everyone_who_waits_and_who_comes_later(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any) -> Any:
        raise RuntimeError("matrix on fire")

    monkeypatch.setattr(Decoder, "decode", fault)
    sampler = Sampler(model, slots=2)
    futures = [sampler.submit(Ask(prompt(k, 5), max_tokens=50)) for k in range(6)]
    for future in futures:
        with pytest.raises(RuntimeError, match="matrix on fire"):
            future.result(timeout=60)
    with pytest.raises(RuntimeError, match="matrix on fire"):
        sampler.submit(Ask([1])).result(timeout=60)
    sampler.close()


def test_closing_ends_what_is_under_way_and_takes_no_more(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, go_on = threading.Event(), threading.Event()
    decode = Decoder.decode

    def held(self: Decoder, *more: Any) -> torch.Tensor:
        at_work.set()
        assert go_on.wait(60)
        return decode(self, *more)

    monkeypatch.setattr(Decoder, "decode", held)
    sampler = Sampler(model, slots=1)
    running, waiting, left = (sampler.submit(Ask(prompt(k, 5), 0.0, max_tokens=500)) for k in range(3))
    assert at_work.wait(60)
    assert left.cancel() and not running.cancel()
    closer = threading.Thread(target=sampler.close)
    closer.start()
    go_on.set()
    closer.join(60)
    for future in (running, waiting, sampler.submit(Ask([1]))):
        with pytest.raises(KimiMiniError, match="closed before the answer was whole"):
            future.result(timeout=60)
    sampler.close()  # a second time is harmless


def test_the_bound_of_the_cache_is_stated(model: Any) -> None:
    with Sampler(model, slots=16, positions=100) as sampler:
        assert sampler.cache_bytes == 8 * 16 * 100 * 80 * 4
        assert sampler.context_length == 100
        assert sampling.SLOTS == 32
