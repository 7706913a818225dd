"""What every section of ``lightning.toml`` has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are fixed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
