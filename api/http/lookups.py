"""Answers as bytes: for one question of a query string, and for a batch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from ...kernels.errors import InvalidInputError, StoreError
from ...kernels.problem import Op, Problem, Routing
from ..documents import answer_json, exact_json, no_answer_document, reference_document
from ..index import WinnerIndex
from ..lookup import Answer, Match, NoAnswer, Place, exact, find, locate, nearest
from ..plain import encode, problem_document
from ..references import ReferenceAnswer, References
from .problems import PROBLEM_TYPES, body_error, problem
from .questions import ask, build_problem, read_query
from .rendering import Rendered, render_text
from .schemas import BatchQuestion, ShapeQuestion, VersionsQuestion

logger = logging.getLogger(__name__)

MAX_PLACES = 1024
"""Most pairs of device and environment, as questions name them, whose place is remembered."""


_PLAIN = {"shape", "device", "environment"}
"""The parameters of a plain question: the rest of its problem is what it leaves out."""

_MOE_HEAD = f"{Op.MOE}:"
"""The beginning of a fused layer's shape."""

_PLAIN_TAIL = Problem(16, 16, 16).key.partition("16x16x16")[2]
"""The end of the key of a problem of which only the shape is said."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to one question, ready to be sent.

    Attributes:
        rendered: the response.
        match: how well it fits.
        missing: what was not found, to be counted; None if something that was measured here is served.
        unread: the question may have a better answer, for which the database has to be read; `answer_missing` does.
    """

    rendered: Rendered
    match: Match
    missing: NoAnswer | None = None
    unread: bool = False


class Places:
    """`locate`, remembered: many questions name the same few devices and environments, or none.

    Args:
        index: the winners, which never change.
    """

    def __init__(self, index: WinnerIndex) -> None:
        self._index = index
        self._found: dict[tuple[str | None, str | None], tuple[Place, str]] = {}

    def locate(self, device: str | None, environment: str | None) -> tuple[Place, str]:
        """What `lookup.locate` finds, and its reasons as a JSON list.

        Raises:
            InvalidInputError: it is ambiguous or contradicts itself.
        """
        found = self._found.get((device, environment))
        if found is None:
            place = locate(self._index, device, environment)
            found = place, encode(place.reasons)
            if len(self._found) >= MAX_PLACES:  # the names come from outside
                self._found.clear()
            self._found[device, environment] = found
        return found


def answer_query(index: WinnerIndex, places: Places, references: References, query: bytes) -> Reply:
    """Answer GET /best-config, from memory alone.

    Args:
        index: the winners.
        places: those found in this index so far.
        references: what is published for those that this index does not have.
        query: the query string.

    Raises:
        InvalidInputError: the question is wrong or ambiguous.
    """
    fields = read_query(query)
    reply = _answer_plain(index, places, fields)
    if reply is not None:
        return reply
    asked = ask(fields)
    result = find(index, asked.problem, places.locate(asked.device, asked.environment)[0], asked.policy)
    if isinstance(result, Answer):
        return Reply(render_text(_answer_text(index, result)), result.match)
    if references.is_read(result):
        return answer_missing(index, references, result)
    return _nothing(index, result, unread=True)


def answer_missing(index: WinnerIndex, references: References, missing: NoAnswer) -> Reply:
    """Answer what has no winner: with published times, if there are any. May read the database.

    Raises:
        StoreError: it had to, and cannot.
    """
    found = references.answer(missing)
    if isinstance(found, ReferenceAnswer):
        return Reply(render_text(encode(reference_document(found))), Match.REFERENCE, missing)
    return _nothing(index, found)


def _nothing(index: WinnerIndex, missing: NoAnswer, *, unread: bool = False) -> Reply:
    """The problem that there is no answer."""
    detail = "; ".join(missing.reasons)
    document = no_answer_document(missing, nearest(index, missing))
    return Reply(problem("not-tuned", f"{detail}.", **document), Match.NONE, missing, unread)


def _answer_plain(index: WinnerIndex, places: Places, fields: Mapping[str, str]) -> Reply | None:
    """The answer to a plain question that has an exact one; None for all others, the wrong ones included.

    A shape as `Problem.shape` writes it is all of the problem's key but a head and a tail that are the same for most
    questions. So the winner is found, if there is one, without making a Problem, which takes half of a lookup's time.
    """
    shape = fields.get("shape", "")
    if not fields.keys() <= _PLAIN:
        return None
    try:
        place, reasons = places.locate(fields.get("device"), fields.get("environment"))
    except InvalidInputError:
        return None
    shelf = index.shelves.get(place.device_fingerprint)
    if shelf is None:
        return None
    # The key of a moe problem begins as its shape does.
    head = "" if shape.startswith(_MOE_HEAD) else f"{Op.GROUPED if shape.startswith('e') else Op.DENSE}:"
    tuned = exact(shelf.winners.get(f"{head}{shape}{_PLAIN_TAIL}", ()), place)
    if tuned is None:
        return None
    text = exact_json(tuned, reasons, index.environment_json[tuned.environment_fingerprint])
    return Reply(render_text(text), Match.EXACT)


def answer_batch(
    index: WinnerIndex, references: References, body: bytes, count_miss: Callable[[NoAnswer], None]
) -> tuple[Rendered, Counter[str]]:
    """Answer POST /best-configs. May read the database: one query for each layer that has no winner.

    Args:
        index: the winners.
        references: what is published for what it does not have; left aside if the database cannot be read.
        body: the request's body.
        count_miss: called for each valid problem for which nothing is served that was measured here.

    Returns:
        The response, and how many shapes were answered how well.

    Raises:
        BodyError: the body is no BatchQuestion.
        InvalidInputError: device or environment are ambiguous or contradict each other.
    """
    try:
        batch = BatchQuestion.model_validate_json(body)
    except ValidationError as error:
        raise body_error(error) from error
    named = batch.environment
    place = locate(index, batch.device, named.versions if isinstance(named, VersionsQuestion) else named)
    matches: Counter[str] = Counter()
    answers: list[str] = []
    readable = True
    for item in batch.shapes:
        try:
            asked = _problem_of(item, batch)
        except InvalidInputError as error:
            answers.append(_none("invalid-input", (str(error),), None))
            continue
        result = find(index, asked, place, batch.policy)
        if isinstance(result, Answer):
            matches[result.match] += 1
            answers.append(_answer_text(index, result))
            continue
        count_miss(result)
        found: NoAnswer | ReferenceAnswer = result
        if readable or references.is_read(result):
            try:
                found = references.answer(result)
            except StoreError as error:
                readable = False
                logger.warning("published times cannot be read: %s", error)
        if isinstance(found, ReferenceAnswer):
            matches[Match.REFERENCE] += 1
            answers.append(encode(reference_document(found)))
        else:
            matches[Match.NONE] += 1
            answers.append(_none("not-tuned", found.reasons, asked))
    n_references = matches[Match.REFERENCE]
    n_found = matches.total() - matches[Match.NONE] - n_references
    text = f'{{"answers":[{",".join(answers)}],"found":{n_found},"references":{n_references}}}'
    return render_text(text), matches


def _answer_text(index: WinnerIndex, answer: Answer) -> str:
    return answer_json(answer, index.environment_json[answer.tuned.environment_fingerprint])


def _problem_of(item: str | ShapeQuestion, batch: BatchQuestion) -> Problem:
    """The problem that an item of a batch names, with the batch's own words for what it leaves out."""
    if isinstance(item, str):
        item = ShapeQuestion.model_construct(shape=item)
    routed = item.op in (Op.GROUPED, Op.MOE) or (item.shape or "").startswith(("e", _MOE_HEAD))
    return build_problem(
        shape=item.shape,
        m=item.m,
        n=item.n,
        k=item.k,
        op=item.op,
        experts=item.experts,
        experts_total=item.experts_total,
        top_k=item.top_k,
        routing=item.routing or (batch.routing if routed else Routing.UNIFORM),
        format=item.format or batch.format,
        out_dtype=item.out_dtype or batch.out_dtype,
    )


def _none(slug: str, reasons: tuple[str, ...], asked: Problem | None) -> str:
    """What stands in a batch where there is no answer."""
    return encode(
        {
            "match": Match.NONE,
            "type": PROBLEM_TYPES[slug].type,
            "reasons": reasons,
            "problem": problem_document(asked) if asked else None,
        }
    )
