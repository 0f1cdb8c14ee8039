from asyncckpt.encode.scratch import _KEPT, _memory, lent


def test_memory_is_lent_again_once_nobody_refers_to_it():
    """Memory comes back to its thread when the last view of it is gone, and not before."""
    first = lent(70_001)
    address = first.ctypes.data
    view = first.data[5:9]
    del first
    second = lent(70_001)
    assert second.ctypes.data != address
    del view
    assert lent(70_001).ctypes.data == address


def test_a_thread_keeps_a_bounded_amount():
    """What a thread remembers is bounded, however much is in use; memory in use stays good."""
    held = [lent(_KEPT // 5 + k) for k in range(20)]
    for k, memory in enumerate(held):
        memory[:] = k
    assert sum(map(len, _memory.lent)) <= _KEPT
    assert all((memory == k).all() for k, memory in enumerate(held))
    assert len(lent(3 * _KEPT)) == 3 * _KEPT
