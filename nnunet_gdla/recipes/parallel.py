"""One function over many items in several processes, with a progress bar."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from tqdm import tqdm

from nnunet_gdla.errors import UserError
from nnunet_gdla.processes import ctrl_c_held_back, ignore_ctrl_c
from nnunet_gdla.recipes.layout import CaseProblem

__all__ = ["each"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    *,
    processes: int,
    title: str,
    done: int = 0,
) -> Iterator[tuple[_Item, _Result | CaseProblem]]:
    """Yield every item with its result, or with the problem that kept it from having one, as they are ready.

    Args:
        function: One that other processes can import.
        items: What it is called with.
        processes: 1 runs everything in this one.
        title: Words at the progress bar.
        done: Items that an earlier run has done, for the progress bar.

    Raises:
        UserError: If a process was killed from outside.
    """
    with tqdm(total=done + len(items), initial=done, desc=title, disable=not items) as bar:
        results = _here(function, items) if processes == 1 else _there(function, items, processes)
        for item, result in results:
            bar.update()
            yield item, result


def _here(
    function: Callable[[_Item], _Result], items: Sequence[_Item]
) -> Iterator[tuple[_Item, _Result | CaseProblem]]:
    for item in items:
        yield item, _guarded(function, item)


def _there(
    function: Callable[[_Item], _Result], items: Sequence[_Item], processes: int
) -> Iterator[tuple[_Item, _Result | CaseProblem]]:
    pool = ProcessPoolExecutor(
        min(processes, max(1, len(items))), multiprocessing.get_context("spawn"), initializer=ignore_ctrl_c
    )
    try:
        with ctrl_c_held_back():
            futures = {pool.submit(_guarded, function, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a process was killed, usually for want of memory; run the same command again with a smaller -np, finished "
            "cases are kept"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _guarded(function: Callable[[_Item], _Result], item: _Item) -> _Result | CaseProblem:
    try:
        return function(item)
    except CaseProblem as problem:
        return problem
