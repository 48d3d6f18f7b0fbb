"""Tables of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.cases.bed import Api, raises, same


def config(api: Api, rows: list[int], width: int) -> Any:
    made = api.module.EngramStoreConfig()
    made.table_vocab_sizes, made.embedding_dim = rows, width
    return made


def case_tables(api: Api) -> None:
    made = api.module.EngramStore(3, config(api, [10, 20], 4), api.s)
    same((made.get_embedding_dim(), made.get_num_heads()), (4, 2))
    same(made.get_store_keys(), ["engram:l3:h0", "engram:l3:h1"])
    same(made.get_table_vocab_sizes(), [10, 20])
    first = np.arange(40, dtype=np.float32).reshape(10, 4)
    second = np.arange(80, dtype=np.float32).reshape(20, 4) + 100
    ids = np.array([[[1, 2], [9, 19]]], np.int64)
    raises(RuntimeError, lambda: made.lookup(ids))
    raises(RuntimeError, lambda: made.populate([first]))
    raises(RuntimeError, lambda: made.populate([second, first]))
    same(made.populate([first, second]), None)
    same(api.s.get("engram:l3:h0"), first.tobytes())
    found = made.lookup(ids)
    same((found.shape, str(found.dtype)), ((1, 2, 2, 4), "float32"))
    same(found[0, 1].tolist(), [first[9].tolist(), second[19].tolist()])
    same(made.lookup([[[1, 2]]]).shape, (1, 1, 2, 4))
    for wrong in ([[[10, 2]]], [[[-1, 2]]], [[1, 2]], [[[1, 2, 3]]], np.zeros((1, 0, 2), int)):
        raises(RuntimeError, made.lookup, np.array(wrong))
    raises(RuntimeError, lambda: made.populate([first + 1, second]))
    raises(RuntimeError, made.remove_from_store)
    same((made.remove_from_store(True), made.remove_from_store()), (2, 0))


def case_tables_that_cannot_be(api: Api) -> None:
    make = api.module.EngramStore
    raises(ValueError, lambda: make(0, config(api, [], 4), api.s))
    raises(ValueError, lambda: make(0, config(api, [0], 4), api.s))
    raises(ValueError, lambda: make(0, config(api, [5], 0), api.s))
    raises(RuntimeError, lambda: make(0, config(api, [5], 4), 5))
    alone = make(0, config(api, [5], 4))
    raises(RuntimeError, lambda: alone.populate([np.zeros((5, 4), np.float32)]))
    raises(RuntimeError, lambda: alone.lookup(np.zeros((1, 1, 1), np.int64)))
    raises(RuntimeError, alone.remove_from_store)
