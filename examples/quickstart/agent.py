"""The smallest agent that trains: it learns to tell even numbers from odd ones, and gets feedback on one answer later.

Start the parts first, each in a terminal of its own:

    rollbus up                     # Kafka, ClickHouse and the ART server with SmolLM2, which it fetches once (93 MB)
    rollbus topics create
    rollbus worker run
    rollbus trainer run
    rollbus sink run

Then run this program, and look at what became of its episodes:

    python examples/quickstart/agent.py
    rollbus trainer steps
    rollbus sql run fate_of_every_trajectory
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

import rollbus

ATTEMPTS = 8
"""Attempts at the same example are compared with one another; one alone is held against what its task has earned."""


def main() -> None:
    """Ask about every number several times at once, and report how good each answer was."""
    arguments = _parse()
    recorder = rollbus.init(
        bootstrap_servers=arguments.kafka, namespace=arguments.namespace, producer="quickstart", logprobs="force"
    )
    client = recorder.wrap(OpenAI(base_url=arguments.endpoint, api_key=rollbus.read_token(arguments.endpoint)))

    def answer(number: int) -> tuple[str, float]:
        with recorder.episode(task="quickstart", example_id=f"number-{number}") as episode:
            question = f"Is {number} an even number? Answer yes or no."
            reply = client.chat.completions.create(
                model=arguments.model, messages=[{"role": "user", "content": question}], max_tokens=8
            )
            says_even = "yes" in (reply.choices[0].message.content or "").lower()
            reward = float(says_even == (number % 2 == 0))
            episode.reward(reward)
        return episode.id, reward

    with ThreadPoolExecutor(ATTEMPTS) as threads:
        for ticket in range(arguments.tickets):
            answers = list(threads.map(answer, [ticket] * ATTEMPTS))
            right = sum(reward for _, reward in answers)
            print(f"is {ticket} even? {right:.0f} of {ATTEMPTS} answers are right", flush=True)
    # Feedback may come at any time, from any process that knows the episode's id.
    recorder.feedback(answers[-1][0], name="thumbs", reward=1.0, key="user-17")
    delivered = recorder.flush(timeout=30)
    print(f"all events are with the broker: {delivered}; {dict(recorder.counters)}")
    recorder.close()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default="http://127.0.0.1:8000/v1", help="OpenAI-compatible, with log-probs")
    parser.add_argument("--kafka", default="127.0.0.1:9092")
    parser.add_argument("--namespace", default="rollbus.")
    parser.add_argument("--model", default="agent")
    parser.add_argument("--tickets", type=int, default=32)
    return parser.parse_args()


if __name__ == "__main__":
    main()
