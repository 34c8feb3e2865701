"""PURE: the stable codes that programs compare. The wording beside them is free and changes between releases.

docs/codes.md describes each one. A code that was released keeps its meaning; one that is not used any more goes.
"""

from __future__ import annotations

from enum import StrEnum


class ProblemCode(StrEnum):
    """What is wrong: `code` of a problem in `meshctl status`, and of a row in `meshctl doctor` that is not ok."""

    # What meshd observes.
    TAILNET_UNREADABLE = "tailnet_unreadable"
    TAILNET_UNWELL = "tailnet_unwell"
    TAILNET_RELAYED = "tailnet_relayed"
    NO_IPV4 = "no_ipv4"
    SLURM_UNREADABLE = "slurm_unreadable"
    SLURMCTLD_DOWN = "slurmctld_down"
    PROVIDER_UNREADABLE = "provider_unreadable"
    OFFERS_UNREADABLE = "offers_unreadable"

    # Settings.
    SETTINGS_REFUSED = "settings_refused"
    SETTINGS_NEED_RESTART = "settings_need_restart"
    SETTINGS_DOUBTFUL = "settings_doubtful"

    # What a person holds back.
    FROZEN = "frozen"

    # Machines and the journal.
    RESTORED_UNLISTED = "restored_unlisted"
    TICK_FAILED = "tick_failed"
    STEP_FAILED = "step_failed"
    MACHINE_LOST = "machine_lost"
    MACHINE_FAILED = "machine_failed"
    MACHINE_LATE = "machine_late"
    AGENT_TROUBLE = "agent_trouble"
    EVENT_FLOOD = "event_flood"
    JOURNAL_MACHINE_UNREADABLE = "journal_machine_unreadable"
    JOURNAL_ROW_UNREADABLE = "journal_row_unreadable"

    # Nodes.
    NODE_UNFIT = "node_unfit"
    PATH_RELAYED = "path_relayed"
    REPLACEMENTS_UNFIT = "replacements_unfit"
    CONTROL_OFFLINE = "control_offline"
    DEVICE_DELETED = "device_deleted"
    DEVICE_COPIED = "device_copied"
    DEVICE_FLAPPING = "device_flapping"
    DEVICES_UNTAGGED = "devices_untagged"
    DEVICES_STRAY = "devices_stray"
    DEVICES_LEFT = "devices_left"
    MACHINE_ID_SHARED = "machine_id_shared"
    NODE_KEY_EXPIRES = "node_key_expires"
    NODE_KEY_EXPIRED = "node_key_expired"
    NODE_TOKEN_NOT_TAKEN = "node_token_not_taken"  # noqa: S105  # not a password
    JOIN_TOKEN_REFUSED = "join_token_refused"  # noqa: S105  # not a password
    METADATA_OPEN = "metadata_open"
    NODE_WITHOUT_LIMITS = "node_without_limits"
    HEAD_NAMES_NOT_KEPT = "head_names_not_kept"
    HEAD_NAMES_SLOW = "head_names_slow"
    EXPORTS_NOT_KEPT = "exports_not_kept"
    SHARE_SERVER_DOWN = "share_server_down"
    SHARE_SERVER_OPEN = "share_server_open"
    SHARE_LOST = "share_lost"

    HOST_STUCK = "host_stuck"
    IMAGE_FAILED = "image_failed"
    IMAGE_REFUSED = "image_refused"

    # Accounts.
    ACCOUNTS_UNREADABLE = "accounts_unreadable"
    ACCOUNTS_HELD = "accounts_held"
    ACCOUNTS_LEFT_OUT = "accounts_left_out"
    ACCOUNT_CLASH = "account_clash"
    ACCOUNT_LEFT_OUT = "account_left_out"
    SHELL_MISSING = "shell_missing"
    SSH_NOT_ADOPTED = "ssh_not_adopted"

    # Slurm's files.
    SLURM_FILES_REFUSED = "slurm_files_refused"
    SLOTS_STUCK = "slots_stuck"
    SLURM_FILES_NOT_INCLUDED = "slurm_files_not_included"
    MACHINE_LEFT_OUT = "machine_left_out"
    SLOT_LINE_KEPT = "slot_line_kept"
    POOL_LINES_KEPT = "pool_lines_kept"
    PROMISE_WAITS = "promise_waits"
    PROMISE_SMALL = "promise_small"
    GPU_RANGE_UNUSED = "gpu_range_unused"
    GPUS_OPEN = "gpus_open"
    HEAD_NODE_MISSING = "head_node_missing"
    HEAD_NODE_INVALID = "head_node_invalid"
    HEAD_NODE_DOWN = "head_node_down"
    POWER_SAVING_OFF = "power_saving_off"
    POWER_SAVING_BROKEN = "power_saving_broken"
    PROLOG_OFF = "prolog_off"
    TASK_PROLOG_OFF = "task_prolog_off"
    NO_SSH_KEY = "no_ssh_key"
    SSH_KEY_EXPOSED = "ssh_key_exposed"
    TASK_PROLOG_MISSING = "task_prolog_missing"
    ACCOUNTING_DOWN = "accounting_down"
    ACCOUNTING_UNREGISTERED = "accounting_unregistered"
    ACCOUNTING_BEHIND = "accounting_behind"

    # Providers and prices.
    PROVIDER_OFF = "provider_off"
    PROVIDER_PAUSED = "provider_paused"
    PROVIDER_NOT_ENABLED = "provider_not_enabled"
    PROVIDER_REFUSES = "provider_refuses"
    PROVIDER_HOSTS_FOREIGN = "provider_hosts_foreign"
    PRICES_STALE = "prices_stale"
    PRICE_FILE_UNREADABLE = "price_file_unreadable"

    # Money.
    BUDGET_WARNING = "budget_warning"
    BUDGET_KILL = "budget_kill"
    BUDGET_TOO_SMALL = "budget_too_small"
    LEDGER_NOT_COPIED = "ledger_not_copied"

    # Keys.
    TAILNET_API_OFF = "tailnet_api_off"
    AUTH_KEY_ENDS = "auth_key_ends"
    AUTH_KEY_DEAD = "auth_key_dead"
    AUTH_KEY_UNKNOWN = "auth_key_unknown"
    AUTH_KEY_EXPOSED = "auth_key_exposed"
    AUTH_KEY_FILE_UNREADABLE = "auth_key_file_unreadable"
    AUTH_KEY_FILE_REFUSED = "auth_key_file_refused"
    AUTH_KEY_ROTATION_STUCK = "auth_key_rotation_stuck"
    AUTH_KEY_ROTATION_TAKEN_BACK = "auth_key_rotation_taken_back"
    AUTH_KEY_ROTATION_FAILS = "auth_key_rotation_fails"
    AUTH_KEY_ROTATION_HELD = "auth_key_rotation_held"
    AUTH_KEY_ROTATION_ACTIVE = "auth_key_rotation_active"
    AUTH_KEY_ROTATION_WAITS = "auth_key_rotation_waits"
    MACHINE_KEYS_STUCK = "machine_keys_stuck"
    MACHINE_KEY_NOT_REVOKED = "machine_key_not_revoked"
    SPARE_KEYS_NOT_MINTED = "spare_keys_not_minted"
    SPARE_KEY_NOT_TAKEN = "spare_key_not_taken"
    SPARE_KEY_STOPPED = "spare_key_stopped"
    MUNGE_BROKEN = "munge_broken"
    MUNGE_KEYS_DIFFER = "munge_keys_differ"
    MUNGE_KEY_OLD = "munge_key_old"
    MUNGE_ROTATION_STUCK = "munge_rotation_stuck"
    MUNGE_ROTATION_FAILS = "munge_rotation_fails"

    # Notifications.
    NOTIFY_FAILS = "notify_fails"
    NOTIFY_NOT_WRITTEN = "notify_not_written"

    # The head without the daemon.
    DAEMON_UNREACHABLE = "daemon_unreachable"
    UNIT_NOT_ACTIVE = "unit_not_active"
    PROGRAM_MISSING = "program_missing"
    TAILSCALE_OFFLINE = "tailscale_offline"
    ACCESS_READ_ONLY = "access_read_only"

    # Services on the head.
    MLFLOW_UNREACHABLE = "mlflow_unreachable"
    MLFLOW_EXPOSED = "mlflow_exposed"

    # meshd itself.
    METRICS_NOT_SERVED = "metrics_not_served"
    WEB_NOT_SERVED = "web_not_served"
    CHECK_FAILED = "check_failed"
    CHECK_TIMED_OUT = "check_timed_out"
    CHECK_NOT_POSSIBLE = "check_not_possible"
    CHECK_ANSWER_OLD = "check_answer_old"
    MESHD_FAULT = "meshd_fault"


class WarningCode(StrEnum):
    """What a plan warns of. One that keeps a pool from its target is also a problem in `meshctl status`."""

    FROZEN = "frozen"
    RESTORED_UNLISTED = "restored_unlisted"
    LAUNCHES_HELD = "launches_held"
    AUTH_KEY_DEAD = "auth_key_dead"
    NO_IPV4 = "no_ipv4"
    POOL_COOLING = "pool_cooling"
    TRIED_ALONE = "tried_alone"
    NO_OFFER = "no_offer"
    SLOTS = "slots"
    LIMIT_IN_ALL = "limit_in_all"
    OVER_LIMIT = "over_limit"
    BUDGET = "budget"
    OVERSHOOT = "overshoot"
    LIMITS_TOGETHER = "limits_together"
    PLACE = "place"
    PRICES_STALE = "prices_stale"
    CLOUD_SAYS_ENDED = "cloud_says_ended"
    OPTION_DROPPED = "option_dropped"


class DemandCode(StrEnum):
    """Why no machine can be had now for a slot that Slurm powers up."""

    FROZEN = "frozen"
    """Somebody froze meshd."""
    RESTORED_UNLISTED = "restored_unlisted"
    """An older journal was restored, and a cloud of the pool was not listed since."""
    AUTH_KEY_DEAD = "auth_key_dead"
    NO_IPV4 = "no_ipv4"
    POOL_COOLING = "pool_cooling"
    NO_CAPACITY = "no_capacity"
    """Every offer that suits has refused or failed lately."""
    NO_OFFER = "no_offer"
    """No offer suits the pool."""
    PLACE = "place"
    """The place of the job's other machines cannot give the rest, and they cannot move."""
    LIMIT_IN_ALL = "limit_in_all"
    """It would cost more per hour than the pool may."""
    BUDGET = "budget"


class CheckName(StrEnum):
    """The checks of `meshctl doctor`: `name` of a row. A row of a provider has the provider's name behind it."""

    # Made by the daemon.
    SETTINGS = "settings"
    MUNGE = "munge"
    MUNGE_KEY = "munge key"
    SLURM = "slurm"
    SLURM_FILES = "slurm files"
    NODE_NAMES = "node names"
    SHARES = "shares"
    GPU_DEVICES = "gpu devices"
    POWER_SAVING = "power saving"
    HEAD_NODE = "head node"
    ACCOUNTING = "accounting"
    METADATA_SERVICE = "metadata service"
    NODE_LIMITS = "node limits"
    JOB_ENV = "job environment"
    ACCOUNTS = "accounts"
    NODE_ACCOUNTS = "node accounts"
    SSH_KEY = "ssh key"
    HOST_TRUST = "trust in hosts"
    TAILNET = "tailnet"
    AUTH_KEY = "auth key"
    KEY_MODE = "key mode"
    NODE_KEYS = "node keys"
    DEVICE_TAGS = "device tags"
    TAILNET_DEVICES = "tailnet devices"
    PROVIDER = "provider"
    MLFLOW = "mlflow"
    NOTIFY = "notify"

    # Made by meshctl.
    ACCESS = "access"
    DAEMON = "daemon"
    TAILSCALE = "tailscale"


class EventKind(StrEnum):
    """What happened: `kind` of an event. An older journal may hold other kinds; meshd shows them as they are."""

    # A machine's way.
    PHASE = "phase"
    FAILURE = "failure"
    ASKED = "asked"
    UNCLEAR = "unclear"
    ADOPTED = "adopted"
    ORPHAN = "orphan"
    ASKED_CLOUD = "asked_cloud"
    REACHED = "reached"
    REFUSED = "refused"
    REJOINED = "rejoined"
    PROBLEM = "problem"
    PUBLISHED = "published"
    START_SLURMD = "start_slurmd"
    REMOVE = "remove"
    KEPT = "kept"
    DRAINED = "drained"
    LEFT = "left"
    FORCE = "force"
    TERMINATE_CALLED = "terminate_called"
    DEVICE_REMOVED = "device_removed"
    CLOCK = "clock"

    # A node's life.
    UNFIT = "unfit"
    FIT = "fit"
    SLURMD_RESTARTED = "slurmd_restarted"
    SLURMD_RELOADED = "slurmd_reloaded"
    UNDRAINED = "undrained"
    REBOOT = "reboot"
    SPOT_NOTICE = "spot_notice"
    LOGIN = "login"
    DEVICE = "device"
    COPY = "copy"
    KEY_EXPIRY = "key_expiry"
    METADATA = "metadata"
    LIMITS = "limits"
    ACCOUNTS = "accounts"
    MUNGE = "munge"
    FLOOD = "flood"

    # Slots without a machine, and jobs that wait for machines.
    SLOTS = "slots"
    QUEUE = "queue"

    # People and keys.
    TARGET = "target"
    PROMISE = "promise"
    FREEZE = "freeze"
    THAW = "thaw"
    NOTIFY = "notify"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    AUTH_KEY = "auth_key"
    AUTH_KEY_ROTATION = "rotation"
    MUNGE_KEY = "munge_key"
    JOIN_TOKEN = "ticket"  # noqa: S105  # not a password
    NODE_TOKEN = "token"  # noqa: S105  # not a password

    # Owned machines.
    HOST = "host"

    # Baked images.
    IMAGE = "image"

    # meshd itself.
    COOLDOWN = "block"
    PRICES = "prices"
    JOURNAL = "journal"


class RefusalCode(StrEnum):
    """Why the API refuses a request: `code` of its answer, where the answer's `kind` does not say it all."""

    NO_SUCH_MACHINE = "no_such_machine"
    NO_SUCH_JOB = "no_such_job"
    NO_SUCH_POOL = "no_such_pool"
    NO_SUCH_KIND = "no_such_kind"
    NO_SUCH_PROVIDER = "no_such_provider"
    NO_SUCH_RECEIVER = "no_such_receiver"
    SLOT_EMPTY = "slot_empty"
    MACHINE_GONE = "machine_gone"
    MACHINE_LEAVES = "machine_leaves"
    NOT_IN_SLURM = "not_in_slurm"
    MACHINE_NEEDED = "machine_needed"
    POOL_NEEDED = "pool_needed"
    NO_POOL_HAS_GPU = "no_pool_has_gpu"
    NO_ROOM = "no_room"
    OUTSIDE_OF_POOL = "outside_of_pool"
    ROTATION_ACTIVE = "rotation_active"
    NO_ROTATION = "no_rotation"
    NOT_WAITED_FOR = "not_waited_for"
    TOO_LATE_TO_ABORT = "too_late_to_abort"
    NO_KEY_TO_ROTATE = "no_key_to_rotate"
    NO_NEW_KEY = "no_new_key"
    KEY_NOT_REVOCABLE = "key_not_revocable"
    ROTATION_IMPOSSIBLE = "rotation_impossible"
    MUNGE_NOT_USED = "munge_not_used"
    HOST_EXISTS = "host_exists"
    HOSTS_OFF = "hosts_off"
    IMAGE_ACTIVE = "image_active"
    IMAGE_NAMED = "image_named"
    NO_TIME = "no_time"
    FROZEN = "frozen"


class FaultCode(StrEnum):
    """What is wrong with the settings: `code` of a row of `meshctl config check` and of a refused reload."""

    # The file.
    FILE_MISSING = "file_missing"
    FILE_UNREADABLE = "file_unreadable"
    FILE_WRITABLE = "file_writable"
    NOT_TOML = "not_toml"

    # Keys and values.
    UNKNOWN_KEY = "unknown_key"
    KEY_MISSING = "key_missing"
    BAD_VALUE = "bad_value"
    SECRET_IN_FILE = "secret_in_file"  # noqa: S105  # not a password
    TIMING = "timing"
    UNUSABLE = "unusable"

    # Pools.
    NO_POOLS = "no_pools"
    NO_BUDGET = "no_budget"
    PROMISE_SMALL = "promise_small"
    PROMISE_UNKNOWN = "promise_unknown"
    POOL_NAME = "pool_name"
    TWO_DEFAULTS = "two_defaults"
    GPU_NEEDED = "gpu_needed"
    GPU_RANGE = "gpu_range"
    NO_ROOM = "no_room"
    TOO_MANY_SLOTS = "too_many_slots"
    UNKNOWN_GPU = "unknown_gpu"
    NAMED_TWICE = "named_twice"
    PODS = "pods"
    MACHINE_WITHOUT_PLACE = "machine_without_place"
    GANG_IN_PARTS = "gang_in_parts"

    # Shares.
    SHARE = "share"

    # Providers and credentials.
    NO_PROVIDERS = "no_providers"
    NO_SUCH_PROVIDER = "no_such_provider"
    PROVIDERS_OFF = "providers_off"
    ADAPTER_BROKEN = "adapter_broken"
    SDK_MISSING = "sdk_missing"
    CREDENTIAL_NEEDED = "credential_needed"
    CREDENTIALS_HIDDEN = "credentials_hidden"
    SECRET_UNREADABLE = "secret_unreadable"  # noqa: S105  # not a password
    SECRET_UNUSABLE = "secret_unusable"  # noqa: S105  # not a password
    SECRET_EXPOSED = "secret_exposed"  # noqa: S105  # not a password
    NO_AUTH_KEY = "no_auth_key"
    NO_RECEIVER = "no_receiver"


class JoinCode(StrEnum):
    """Why the head refuses a machine: `code` of the node API's answer, and `fields.code` of an event `ticket`."""

    REFUSED = "join_refused"

    # Its token and device.
    INVITATION_USED = "invitation_used"
    INVITATION_EXPIRED = "invitation_expired"
    OTHER_MACHINE = "other_machine"
    OTHER_DEVICE = "other_device"
    OTHER_INSTANCE = "other_instance"
    TOKEN_CLOSED = "ticket_closed"  # noqa: S105  # not a password
    TOKEN_EXPIRED = "ticket_expired"  # noqa: S105  # not a password
    TOO_MANY_DEVICES = "too_many_devices"
    DEVICE_COPIED = "device_copied"
    OLD_DEVICE_THERE = "old_device_there"
    ADDRESS_TAKEN = "address_taken"
    NO_IPV4 = "no_ipv4"
    NOT_CONFIRMED = "not_confirmed"
    NOT_JOINABLE = "not_joinable"

    # What it is.
    SLURM_IN_USE = "slurm_in_use"
    HOST_UNSUITED = "host_unsuited"
    CLOCK_SKEW = "clock_skew"
    SLURMD_MISSING = "slurmd_missing"
    SLURMD_VERSION = "slurmd_version"
    NO_HARDWARE = "no_hardware"
    HARDWARE_CHANGED = "hardware_changed"
    GPUS_MISSING = "gpus_missing"
    GPUS_FAULTY = "gpus_faulty"
    GPU_MODEL = "gpu_model"
    PROMISE = "promise"
