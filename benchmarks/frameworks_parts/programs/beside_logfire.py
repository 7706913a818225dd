"""The openai client, watched by Logfire as well."""

import logfire

from frameworks_parts.programs import openai_client

logfire.configure(send_to_logfire=False, console=False)
logfire.instrument_openai()
play = openai_client.play
