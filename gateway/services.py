"""What the endpoints work with; the wiring opens it."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.accept import Desk
from gateway.cancel import Cancel
from gateway.delivery import Delivery
from gateway.metrics import Metrics
from gateway.quotes import Quotes
from gateway.reading import Inflight
from gateway.settings import BatchSettings, FileSettings, HttpSettings
from policies.deployments import Deployment
from policies.keys import ApiKeys
from policies.tenants import Tenant
from router.batches import Batches
from router.board import Board
from router.epoch import Epoch
from router.files import Files
from router.lessons import Lessons
from router.log import Log
from router.sharing import Sharing


@dataclass(frozen=True, slots=True)
class Services:
    """Open and ready; `tenants` and `deployments` by name."""

    keys: ApiKeys
    desk: Desk
    board: Board
    epoch: Epoch
    cancel: Cancel
    delivery: Delivery
    log: Log
    tenants: Mapping[str, Tenant]
    deployments: Mapping[str, Deployment]
    http: HttpSettings
    files: Files
    file_settings: FileSettings
    batches: Batches
    batch_settings: BatchSettings
    inflight: Inflight
    metrics: Metrics
    sharing: Sharing
    quotes: Quotes
    lessons: Lessons
