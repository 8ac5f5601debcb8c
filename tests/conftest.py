from gevent import monkey

monkey.patch_all()  # as importing locust does; before anything else looks at socket or ssl

from collections.abc import Iterator  # noqa: E402

import pytest  # noqa: E402
import scripted  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[scripted.Server]:
    """A scripted server of this module's own, in a process that gevent has not patched."""
    running = scripted.Server()
    yield running
    running.stop()
