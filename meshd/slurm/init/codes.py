"""PURE: the stable codes of the warnings and refusals of `meshctl init`. Their texts may change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshd.errors import SlurmError


class Warn(StrEnum):
    """What init does not change, and a person should check."""

    ACCOUNTING_ELSEWHERE = "accounting_elsewhere"
    ACCOUNTING_EXISTS = "accounting_exists"
    ALL_NODES = "all_nodes"
    ASSOCIATIONS = "associations"
    AUTH_TYPE = "auth_type"
    BACKUP_CONTROLLER = "backup_controller"
    CLOUD_DNS = "cloud_dns"
    CONTROLLER_BEHIND = "controller_behind"
    DAEMON_USER = "daemon_user"
    FEDERATION = "federation"
    GRES_FOR_ALL = "gres_for_all"
    HEAD_ADDRESS = "head_address"
    HEAD_NODE_EXISTS = "head_node_exists"
    HEAD_TRUSTS_NODES = "head_trusts_nodes"
    HEAD_UNCONSTRAINED = "head_unconstrained"
    INCLUDE_NOT_SHIPPED = "include_not_shipped"
    IPV4_OFF = "ipv4_off"
    JOB_SUBMIT = "job_submit"
    LISTENS_ELSEWHERE = "listens_elsewhere"
    NODE_DEFAULTS = "node_defaults"
    NOT_A_NUMBER = "not_a_number"
    OTHER_PRIMARY = "other_primary"
    PARTITION_DEFAULTS = "partition_defaults"
    POWER_SAVING = "power_saving"
    POWER_SAVING_TAKEN = "power_saving_taken"
    PROGRAM_ON_MACHINES = "program_on_machines"
    SELECT_TYPE = "select_type"
    SLURMCTLD_PORT = "slurmctld_port"
    TASK_PROLOG = "task_prolog"
    TOPOLOGY = "topology"
    TWO_DEFAULTS = "two_defaults"


class Refusal(StrEnum):
    """Why init writes nothing."""

    ACCOUNTING_NEEDS_HOST = "accounting_needs_host"
    ADDRESS_NEEDED = "address_needed"
    BAD_ADDRESS = "bad_address"
    BAD_NAME = "bad_name"
    BUSY = "busy"
    BYTE_ORDER_MARK = "byte_order_mark"
    CHANGED_MEANWHILE = "changed_meanwhile"
    COMPUTE_NEEDS_HOST = "compute_needs_host"
    FORMER_FILES = "former_files"
    FILE_NAME_TAKEN = "file_name_taken"
    HEAD_BUSY = "head_busy"
    HEAD_HARDWARE = "head_hardware"
    HEAD_NAME_NEEDED = "head_name_needed"
    HOSTLIST = "hostlist"
    IMMUTABLE = "immutable"
    INCLUDE_LOOP = "include_loop"
    INCLUDE_MISSING = "include_missing"
    LINK_DANGLES = "link_dangles"
    LINK_LOOP = "link_loop"
    NODESET_NAME_TAKEN = "nodeset_name_taken"
    NODE_NAME_TAKEN = "node_name_taken"
    NOT_A_FILE = "not_a_file"
    NOT_IN_FORCE = "not_in_force"
    NO_USER = "no_user"
    OTHER_DATABASE = "other_database"
    PACKAGES_MISSING = "packages_missing"
    PARTITION_NAME_TAKEN = "partition_name_taken"
    READ_ONLY = "read_only"
    SLURM_REJECTS = "slurm_rejects"
    UNREADABLE_LINE = "unreadable_line"
    WOULD_BREAK = "would_break"
    WOULD_LOCK_OUT = "would_lock_out"


@dataclass(frozen=True, slots=True)
class Finding:
    """A warning. `text` says what, where, and what to do."""

    code: Warn
    text: str


class InitRefused(SlurmError):
    """init wrote nothing. `cure` says what to do first."""

    def __init__(self, code: Refusal, text: str, cure: str) -> None:
        self.code = code
        self.cure = cure
        super().__init__(text)
