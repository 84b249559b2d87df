"""Policies by name: the built-in ones; anything else is a model reference."""

from lossbench.policies.tiny import TinyPolicy

BUILT_IN: dict[str, TinyPolicy] = {
    "selfcheck": TinyPolicy(),
    # The null control: check tokens are coin flips, so stopping cannot depend on having gone wrong.
    "selfcheck-null": TinyPolicy(check_truth=0.5),
    # Nearly always right from the start: few groups are mixed, so there is little for any loss to act on.
    "selfcheck-easy": TinyPolicy(corrupted_answers=0.05),
}
