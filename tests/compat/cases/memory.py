"""Memory: pools of registered buffers, the host's allocator."""

from __future__ import annotations

from tests.compat.cases.bed import Api, raises, same

MB8 = 8 << 20


def case_a_pool_lends_buffers(api: Api) -> None:
    pool = api.module.BufferPool(api.s)
    lease = pool.acquire(1000)
    same((lease.size, lease.ptr > 0, type(lease).__name__), (1000, True, "BufferLease"))
    view = lease.buffer
    same((view.nbytes, view.format, view.readonly), (1000, "B", False))
    view[:5] = b"hello"
    same(api.s.put_from("p", lease.ptr, 5), 0)
    same(api.s.get("p"), b"hello")
    same(api.s.register_buffer(lease.ptr, 100), -600)
    del view
    lease.release()
    lease.release()
    same(lease.size, 1000)
    raises(RuntimeError, lambda: lease.ptr)
    raises(BufferError, lambda: lease.buffer)
    with pool.buffer(100) as other:
        assert other.ptr > 0
    pool.close()


def case_a_pool_runs_out(api: Api) -> None:
    pool = api.module.BufferPool(api.s, max_bytes=2 * MB8)
    leases = [pool.acquire(MB8), pool.acquire(MB8)]
    raises(RuntimeError, lambda: pool.acquire(MB8, block=False))
    raises(RuntimeError, lambda: pool.acquire(MB8, timeout=0.05))
    raises(RuntimeError, lambda: pool.acquire(MB8, timeout=-1))
    raises(RuntimeError, pool.close)
    leases.pop().release()
    pool.acquire(MB8, block=False).release()
    leases.pop().release()
    pool.close()


def case_pools_that_cannot_be(api: Api) -> None:
    make = api.module.BufferPool
    raises(TypeError, lambda: make(api.s, max_bytes=-1))
    raises(TypeError, lambda: make(api.s, nosuch=1))
    raises(RuntimeError, lambda: make(api.s, min_size_class=0))
    raises(RuntimeError, lambda: make(api.s, alignment=3))
    raises(RuntimeError, lambda: make(api.s, max_size_class="x"))
    raises(RuntimeError, lambda: make(api.s, default_timeout="x"))
    raises(RuntimeError, lambda: make(None))
    raises(RuntimeError, lambda: make(5))
    raises(RuntimeError, lambda: make(api.new()))
    pool = make(api.s)
    raises(TypeError, lambda: pool.acquire(-1))
    raises(TypeError, lambda: pool.acquire("x"))
    pool.prewarm(1000, 1)
    pool.close()


def case_the_allocator(api: Api) -> None:
    allocator = api.module.MooncakeHostMemAllocator()
    address = allocator.alloc(1 << 20)
    assert address > 0
    same(api.s.register_buffer(address, 1 << 20), 0)
    same(api.s.put_from("a", address, 100), 0)
    same(api.s.get("a"), bytes(100))
    same(api.s.unregister_buffer(address), 0)
    same((allocator.free(address), allocator.free(address)), (0, -1))
    same((allocator.free(0), allocator.free(123)), (-1, -1))
    raises(RuntimeError, lambda: allocator.alloc(0))
    raises(TypeError, lambda: allocator.alloc(-1))
    assert api.module.get_alloc_func_addr() > 0
    assert api.module.get_free_func_addr() > 0


def case_numa_nodes(api: Api) -> None:
    for node in (0, 1000, -1):
        same(api.module.bind_to_numa_node(node), None)
    raises(TypeError, lambda: api.module.bind_to_numa_node("x"))


def case_names_of_the_module(api: Api) -> None:
    module = api.module
    same((int(module.COMPLETE), int(module.PROCESSING), int(module.FAILED)), (3, 1, 2))
    same(repr(module.FAILED), "<TaskStatus.FAILED: 2>")
    same(repr(module.COMPLETE), "<ReplicaStatus.COMPLETE: 3>")
    same((module.GENERAL.name, module.GENERAL.value), ("GENERAL", 9))
    same(hasattr(module, "ENABLE"), False)
    same(module.BufferPool is module.RegisteredBufferPool, True)
    assert module.SoftPinAction.ENABLE != 1
    same(module.SoftPinAction(1), module.SoftPinAction.ENABLE)
    task = module.QueryTaskResponse()
    same((task.id, task.created_at_ms_epoch, task.message), ((0, 0), 0, ""))
    assert task.status == module.TaskStatus.PENDING
