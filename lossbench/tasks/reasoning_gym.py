"""`reasoning-gym:NAME`: a generator of the reasoning-gym collection (extra `tasks`) with its own scorer."""

from typing import Any

from lossbench.errors import UsageError, unknown
from lossbench.extras import require
from lossbench.tasks.base import Prompt, VerifiedTask
from lossbench.tasks.params import Size, TaskParams
from lossbench.tasks.verifiers import Verifier, marked_answer

PREFIX = "reasoning-gym:"


class ReasoningGymParams(TaskParams):
    """Number of problems, the generator's seed, and the score from which an answer is correct."""

    train_size: Size = 500
    eval_size: Size = 100
    seed: int = 0
    threshold: float = 0.99


class ReasoningGymTask(VerifiedTask):
    """Problems `0 .. eval_size-1` of a generator are for evaluation, the next `train_size` for training.

    The answer is the marked part of a completion (`<answer></answer>`, `\\boxed{}` or `####`), else its last line that
    is not blank. It is correct where the generator's own scorer gives at least `threshold` of 1.
    """

    chat = True
    shortest_answer_tokens = 2  # one answer token and the EOS

    def __init__(self, generator: str, params: ReasoningGymParams) -> None:
        require(f"task '{PREFIX}{generator}'", "tasks", "reasoning_gym")
        import reasoning_gym
        from reasoning_gym.factory import DATASETS

        if generator not in DATASETS:
            raise UsageError(unknown("reasoning-gym generator", generator, sorted(DATASETS)))
        self.name = f"{PREFIX}{generator}"
        self._threshold, size = params.threshold, params.train_size + params.eval_size
        self._data = reasoning_gym.create_dataset(generator, size=size, seed=params.seed)
        self.verifier = Verifier(self.name, self._check)
        self._entries: dict[str, dict[str, Any]] = {}
        prompts = [self._prompt(number) for number in range(size)]
        self.eval_prompts, self.train_prompts = prompts[: params.eval_size], prompts[params.eval_size :]

    def _prompt(self, number: int) -> Prompt:
        entry = self._data[number]
        key = f"{number}: {entry['answer']}"  # answers repeat and scorers look at the whole entry
        self._entries[key] = entry
        return Prompt(number, f"{entry['question']}\nGive the final answer as <answer>answer</answer>.", key)

    def _check(self, completion: str, answer: str) -> bool:
        said = marked_answer(completion)
        if said is None:
            lines = [line for line in completion.splitlines() if line.strip()]
            said = lines[-1] if lines else ""
        return self._data.score_answer(answer=said.strip(), entry=self._entries[answer]) >= self._threshold

    def right_completion(self, prompt: Prompt) -> str:
        """A completion that solves `prompt`."""
        return f"<answer>{self._entries[prompt.answer]['answer']}</answer>"
