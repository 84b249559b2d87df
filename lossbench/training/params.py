"""The surrogate's constants out of a run's settings."""

from lossbench.loss.surrogates import SurrogateParams
from lossbench.training.run_spec import Settings

_NAMES = (
    "epsilon_low", "epsilon_high", "delta", "cispo_cap", "sapo_tau_pos", "sapo_tau_neg", "importance_sampling_level",
)  # fmt: skip


def surrogate_params(settings: Settings) -> SurrogateParams:
    """The constants that `settings` give to the surrogates."""
    return SurrogateParams(**{name: getattr(settings, name) for name in _NAMES})
