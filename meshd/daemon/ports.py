"""What lies outside of the daemon: time, programs, tailscaled, the clouds, and what the daemon keeps on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshd.accounts.reader import AccountsReader
from meshd.config import Settings
from meshd.daemon.agents import AgentQueues
from meshd.daemon.auth_key.ports import KeyPorts
from meshd.daemon.auth_key.ports import open_ports as open_key_ports
from meshd.daemon.auth_key.steps import Prover
from meshd.daemon.munge_key.head import HeadMunge, HeadSide
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.prices.files import PriceFiles
from meshd.daemon.providers.registry import load_providers
from meshd.daemon.slurm.root_units import RootFiles
from meshd.munge.client import MungeClient
from meshd.munge.key import MungeKeyStore
from meshd.provider_api import Provider
from meshd.runtime.clock import Clock, SystemClock
from meshd.runtime.run import run
from meshd.slurm.client import SlurmClient
from meshd.slurm.files import Writer
from meshd.slurm.job_records import JobRecordReader
from meshd.store.kept_logs import KeptLogs
from meshd.tailnet.canary import Canary
from meshd.tailnet.localapi import LocalApi


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one life of the daemon. A test replaces those that it simulates.

    Attributes:
        clock: time.
        providers: the enabled ones, as their adapters make them.
        price_files: the prices that providers have fetched.
        tailscaled: the head's own.
        keys: what auth keys are made and kept with.
        prover: proves an auth key by a login.
        slurm: Slurm's commands.
        job_records: which jobs had which nodes.
        slurm_files: has root's unit write Slurm's files.
        munge: the head's munged.
        munge_head: has root's unit change the head's munge key.
        munge_keys: keeps munge keys while they rotate.
        accounts: reads the head's accounts.
        tokens: the machines' tokens.
        agents: the commands for node agents.
        kept_logs: keeps the last logs of machines.
    """

    clock: Clock
    providers: Mapping[str, Provider]
    price_files: PriceFiles
    tailscaled: LocalApi
    keys: KeyPorts
    prover: Prover
    slurm: SlurmClient
    job_records: JobRecordReader
    slurm_files: Writer
    munge: MungeClient
    munge_head: HeadSide
    munge_keys: MungeKeyStore
    accounts: AccountsReader
    tokens: MachineTokens
    agents: AgentQueues
    kept_logs: KeptLogs


def open_ports(settings: Settings) -> Ports:
    """The real ones, as the settings name them.

    Raises:
        MeshdError: the state directory cannot be used.
    """
    clock, state, requests = SystemClock(), settings.cluster.state_dir, settings.cluster.socket.parent
    price_files = PriceFiles(state / "prices")
    providers = load_providers(settings, clock.now, price_files.find)
    slurm, munge = SlurmClient(run, settings.slurm.command_timeout_s), MungeClient(run)
    return Ports(
        clock=clock,
        providers=providers,
        price_files=price_files,
        tailscaled=LocalApi(settings.tailnet.socket),
        keys=open_key_ports(
            settings, clock, {name: one.capabilities.user_data_private for name, one in providers.items()}
        ),
        prover=Canary(run, clock, settings.tailnet.login_server),
        slurm=slurm,
        job_records=JobRecordReader(run, settings.slurm.command_timeout_s),
        slurm_files=RootFiles(requests, clock),
        munge=munge,
        munge_head=HeadMunge(requests, munge, slurm, clock),
        munge_keys=MungeKeyStore(state),
        accounts=AccountsReader(run),
        tokens=MachineTokens.at(state / "machines.key"),
        agents=AgentQueues(),
        kept_logs=KeptLogs(state / "logs"),
    )
