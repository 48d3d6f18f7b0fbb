from moonpool.demo.endurance import ENDS_MAX, WAIT_MAX_S, WINDOW_S, Endurance


def test_the_first_end_is_followed_by_a_start_at_once_and_the_next_by_longer_waits() -> None:
    endurance = Endurance()
    waits = [endurance.ended(float(n)) for n in range(ENDS_MAX)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0]
    assert endurance.ended(ENDS_MAX) is None


def test_ends_long_ago_are_forgiven() -> None:
    endurance = Endurance()
    for n in range(100):
        assert endurance.ended(n * (WINDOW_S + 1.0)) == 0.0


def test_a_process_that_ends_now_and_then_is_kept() -> None:
    endurance = Endurance()
    waits = [endurance.ended(n * WINDOW_S / (ENDS_MAX - 0.5)) for n in range(50)]
    assert None not in waits
    assert max(each for each in waits if each is not None) <= WAIT_MAX_S
