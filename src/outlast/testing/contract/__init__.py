"""The published specification of a store, as tests: what `outlast.store` promises, held to.

A store passes by completing the class (a pytest file of ten lines):

    class TestMyStore(StoreContract):
        async def open_store(self, tmp_path: Path, clock: Clock) -> Store:
            return MyStore(tmp_path / "my.db", clock)

The other hooks that it gives are in `store_under_test.py`. A store that keeps nothing beyond its
process completes `VolatileStoreContract` instead. Needs pytest and pytest-asyncio.
"""

import pytest

TOPICS = (
    "admission budget builder commit commit_index dead_worker deployment document durability "
    "erasure failure flow_control listing outbox ownership reading request send tag transaction"
    " usage wake_up"
)
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in TOPICS.split()))

from outlast.testing.contract.admission import AdmissionContract  # noqa: E402
from outlast.testing.contract.budget import BudgetContract  # noqa: E402
from outlast.testing.contract.commit import CommitContract  # noqa: E402
from outlast.testing.contract.commit_index import CommitIndexContract  # noqa: E402
from outlast.testing.contract.dead_worker import DeadWorkerContract  # noqa: E402
from outlast.testing.contract.deployment import DeploymentContract  # noqa: E402
from outlast.testing.contract.document import DocumentContract  # noqa: E402
from outlast.testing.contract.durability import DurabilityContract, LifeContract  # noqa: E402
from outlast.testing.contract.erasure import ErasureContract  # noqa: E402
from outlast.testing.contract.failure import FailureContract  # noqa: E402
from outlast.testing.contract.flow_control import FlowControlContract  # noqa: E402
from outlast.testing.contract.listing import ListingContract  # noqa: E402
from outlast.testing.contract.outbox import OutboxContract  # noqa: E402
from outlast.testing.contract.ownership import OwnershipContract  # noqa: E402
from outlast.testing.contract.reading import ReadingContract  # noqa: E402
from outlast.testing.contract.request import RequestContract  # noqa: E402
from outlast.testing.contract.send import SendContract  # noqa: E402
from outlast.testing.contract.tag import TagContract  # noqa: E402
from outlast.testing.contract.transaction import TransactionContract  # noqa: E402
from outlast.testing.contract.usage import UsageContract  # noqa: E402
from outlast.testing.contract.wake_up import WakeUpContract  # noqa: E402

__all__ = ["StoreContract", "VolatileStoreContract"]


class VolatileStoreContract(
    AdmissionContract,
    RequestContract,
    OwnershipContract,
    DeadWorkerContract,
    DeploymentContract,
    CommitContract,
    CommitIndexContract,
    FlowControlContract,
    ReadingContract,
    ListingContract,
    FailureContract,
    TagContract,
    DocumentContract,
    OutboxContract,
    ErasureContract,
    SendContract,
    UsageContract,
    BudgetContract,
    WakeUpContract,
    TransactionContract,
    LifeContract,
):
    """Every sentence of `outlast.store` that holds while the process lives, as a test."""


class StoreContract(VolatileStoreContract, DurabilityContract):
    """Every sentence of `outlast.store` as a test."""
