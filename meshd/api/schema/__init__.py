"""The documents of the unix-socket API, version 1.

Changes are additive: a field may be added with a default, none is taken away or changes its meaning. Readers ignore
what they do not know; requests with unknown fields are refused. Times carry their zone. Fields whose values may
grow (phases, kinds, severities) are plain strings, so that an older reader accepts a newer value.
"""

from __future__ import annotations

from pydantic import BaseModel

from meshd.api.schema.allreduce import AllReduceRow, AllReduceView, NodeVerdict
from meshd.api.schema.base import SCHEMA_VERSION, Document, DryRunRequest, Part, Request
from meshd.api.schema.cost import BudgetRow, CostQuery, CostRow, CostView
from meshd.api.schema.events import EventRow, EventsQuery, EventsView
from meshd.api.schema.explain import AttemptRow, ExplainFailure, ExplainQuery, ExplainView, ExplainViews
from meshd.api.schema.head import (
    CallerView,
    CheckRow,
    DoctorView,
    ErrorView,
    InitChange,
    InitFinding,
    InitView,
    ReloadRequest,
    ReloadView,
    VersionView,
)
from meshd.api.schema.health import GpuLoadRow, HealthView, PathRow, PeerPathsView, SectionRow
from meshd.api.schema.hosts import HostRow, HostsView, InviteAnswer, InviteRequest
from meshd.api.schema.key_rotation import (
    AbortRotationRequest,
    KeyRow,
    NewcomerRow,
    RotateKeyRequest,
    RotationNodeRow,
    RotationView,
    WaiveRequest,
)
from meshd.api.schema.logs import LogRow, LogsQuery, LogsView, ReportRow
from meshd.api.schema.munge_rotation import (
    MungeNodeRow,
    MungeRotationRequest,
    MungeRotationView,
    RotateMungeKeyRequest,
)
from meshd.api.schema.nodes import (
    DrainRequest,
    MachineAnswer,
    MachineAnswers,
    MachineFailure,
    NodeRow,
    NodesView,
    RemoveRequest,
)
from meshd.api.schema.offers import NearRow, OfferRow, OffersQuery, OffersView
from meshd.api.schema.plan import AlternativeRow, PlanFinding, PlannedRow, PlanView, StepRow
from meshd.api.schema.prices import PriceRefreshRow, PriceRow, PricesRefresh, PricesRefreshed, PricesView
from meshd.api.schema.scale import ScaleAnswer, ScaleOutcome, ScaleRequest, WaitingFor
from meshd.api.schema.status import (
    PoolView,
    ProblemView,
    PublishView,
    QueueView,
    SourceView,
    SpendView,
    StatusView,
    WaitingRow,
)
from meshd.api.schema.token_renewal import TokenNodeRow, TokenRenewalRequest, TokenRenewalView

__all__ = [
    "DOCUMENTS",
    "SCHEMA_VERSION",
    "AbortRotationRequest",
    "AllReduceRow",
    "AllReduceView",
    "AlternativeRow",
    "AttemptRow",
    "BudgetRow",
    "CallerView",
    "CheckRow",
    "CostQuery",
    "CostRow",
    "CostView",
    "DoctorView",
    "Document",
    "DrainRequest",
    "DryRunRequest",
    "ErrorView",
    "EventRow",
    "EventsQuery",
    "EventsView",
    "ExplainFailure",
    "ExplainQuery",
    "ExplainView",
    "ExplainViews",
    "GpuLoadRow",
    "HealthView",
    "HostRow",
    "HostsView",
    "InitChange",
    "InitFinding",
    "InitView",
    "InviteAnswer",
    "InviteRequest",
    "KeyRow",
    "LogRow",
    "LogsQuery",
    "LogsView",
    "MachineAnswer",
    "MachineAnswers",
    "MachineFailure",
    "MungeNodeRow",
    "MungeRotationRequest",
    "MungeRotationView",
    "NearRow",
    "NewcomerRow",
    "NodeRow",
    "NodeVerdict",
    "NodesView",
    "OfferRow",
    "OffersQuery",
    "OffersView",
    "Part",
    "PathRow",
    "PeerPathsView",
    "PlanFinding",
    "PlanView",
    "PlannedRow",
    "PoolView",
    "PriceRefreshRow",
    "PriceRow",
    "PricesRefresh",
    "PricesRefreshed",
    "PricesView",
    "ProblemView",
    "PublishView",
    "QueueView",
    "ReloadRequest",
    "ReloadView",
    "RemoveRequest",
    "ReportRow",
    "Request",
    "RotateKeyRequest",
    "RotateMungeKeyRequest",
    "RotationNodeRow",
    "RotationView",
    "ScaleAnswer",
    "ScaleOutcome",
    "ScaleRequest",
    "SectionRow",
    "SourceView",
    "SpendView",
    "StatusView",
    "StepRow",
    "TokenNodeRow",
    "TokenRenewalRequest",
    "TokenRenewalView",
    "VersionView",
    "WaitingFor",
    "WaitingRow",
    "WaiveRequest",
]

DOCUMENTS: tuple[type[BaseModel], ...] = (
    StatusView,
    NodesView,
    PlanView,
    OffersView,
    CostView,
    ExplainView,
    ExplainViews,
    LogsView,
    AllReduceView,
    PricesView,
    PricesRefresh,
    PricesRefreshed,
    ScaleRequest,
    ScaleAnswer,
    ScaleOutcome,
    OffersQuery,
    ExplainQuery,
    EventsView,
    DrainRequest,
    RemoveRequest,
    RotationView,
    RotateKeyRequest,
    AbortRotationRequest,
    WaiveRequest,
    MungeRotationView,
    RotateMungeKeyRequest,
    MungeRotationRequest,
    TokenRenewalView,
    TokenRenewalRequest,
    MachineAnswer,
    MachineAnswers,
    InviteRequest,
    InviteAnswer,
    HostsView,
    DoctorView,
    ReloadRequest,
    ReloadView,
    InitView,
    VersionView,
    CallerView,
    ErrorView,
)
"""Everything that crosses the socket or is printed as JSON."""
