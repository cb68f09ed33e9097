"""Several handlers and batches against the Java broker."""

from tests.integration.test_handlers import (  # noqa: F401 - pytest finds scenarios by their names here
    test_a_batch_waits_for_its_size_or_its_age,
    test_a_failed_message_comes_again_to_its_handler_alone,
    test_each_message_goes_to_its_handler,
    test_messages_that_wait_at_the_close_come_again,
)
from tests.interop.on_java import MARKS, name, namesrv  # noqa: F401 - pytest finds fixtures and marks by their names here

pytestmark = MARKS
