"""The package behind the URL of remote storage, loaded before a broker needs it."""

from __future__ import annotations

from barnabas.config.broker_config import BrokerConfig
from barnabas.config.settings import take
from barnabas.kernel.host import Host, OffloadKind
from barnabas.server.errors import BrokerStartError
from barnabas.tiered.settings import TieredSettings
from barnabas.tiered.storage import StorageConfigError, is_of_fsspec, open_store


async def load_remote_storage(config: BrokerConfig, host: Host) -> None:
    """Loads, off the loop, what fsspec needs for the URL: some hundred modules, for S3, which hold a loop for 0.4 s.

    Raises BrokerStartError for a storage that cannot be used.
    """
    settings = take(TieredSettings, config.values)
    if not config.values["remote.log.storage.system.enable"] or not is_of_fsspec(settings.url):
        return
    try:
        await host.offload(OffloadKind.REMOTE, open_store, host.files, settings.url, settings.options)
    except StorageConfigError as error:
        raise BrokerStartError(str(error)) from error
