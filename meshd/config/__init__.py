"""Settings: one TOML file, `MESHD_*` variables, and secrets from files or `$CREDENTIALS_DIRECTORY`.

Later sources win: defaults, /etc/meshd/meshd.toml, environment (`MESHD_SLURM__CONF_DIR=/etc/slurm`, nesting by two
underscores). A `*_file` setting names the file of a secret. Without it, the secret is in the credentials directory,
under the name in the setting's description.
"""

from meshd.config.checks import doubts, secrets_in
from meshd.config.credentials import tailnet_credentials
from meshd.config.load import File, load, parse, read
from meshd.config.models import (
    DEFAULT_PATH,
    NAME,
    ClusterSettings,
    HeadSettings,
    LogSettings,
    MetricsSettings,
    MlflowSettings,
    NodeApiSettings,
    NotifySettings,
    PoolSettings,
    PriceSettings,
    ProviderSettings,
    Settings,
    ShareSettings,
    SlurmSettings,
    TailnetSettings,
    TimingSettings,
    UsersSettings,
    WebSettings,
)

__all__ = [
    "DEFAULT_PATH",
    "NAME",
    "ClusterSettings",
    "File",
    "HeadSettings",
    "LogSettings",
    "MetricsSettings",
    "MlflowSettings",
    "NodeApiSettings",
    "NotifySettings",
    "PoolSettings",
    "PriceSettings",
    "ProviderSettings",
    "Settings",
    "ShareSettings",
    "SlurmSettings",
    "TailnetSettings",
    "TimingSettings",
    "UsersSettings",
    "WebSettings",
    "doubts",
    "load",
    "parse",
    "read",
    "secrets_in",
    "tailnet_credentials",
]
