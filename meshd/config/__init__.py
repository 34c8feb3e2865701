"""Settings: one TOML file, `MESHD_*` variables over it, secrets from files or `$CREDENTIALS_DIRECTORY`.

Order, later wins: defaults, /etc/meshd/meshd.toml, environment (`MESHD_SLURM__CONF_DIR=/etc/slurm`, nesting by two
underscores). A secret is named by a `*_file` setting or lies in the credentials directory under the name that its
setting's description gives.
"""

from meshd.config.checks import doubts, secrets_in
from meshd.config.credentials import tailnet_credentials
from meshd.config.load import File, load, parse, read
from meshd.config.models import (
    DEFAULT_PATH,
    NAME,
    ClusterSettings,
    LogSettings,
    MetricsSettings,
    NodeApiSettings,
    PoolSettings,
    PriceSettings,
    ProviderSettings,
    Settings,
    SlurmSettings,
    TailnetSettings,
    TimingSettings,
)

__all__ = [
    "DEFAULT_PATH",
    "NAME",
    "ClusterSettings",
    "File",
    "LogSettings",
    "MetricsSettings",
    "NodeApiSettings",
    "PoolSettings",
    "PriceSettings",
    "ProviderSettings",
    "Settings",
    "SlurmSettings",
    "TailnetSettings",
    "TimingSettings",
    "doubts",
    "load",
    "parse",
    "read",
    "secrets_in",
    "tailnet_credentials",
]
