"""What a program written for ART 0.5.7 does, with that release's own client: `client.py URL`."""

import asyncio
import json
import os
import sys

import art
from art.trajectories import Trajectory, TrajectoryGroup

MESSAGES = [{"role": "user", "content": "choose a letter"}]


async def main(url: str) -> None:
    backend = art.Backend(base_url=url)
    model = art.TrainableModel(name="agent", project="any", base_model="any")
    await model.register(backend)
    before = await model.get_step()
    client = model.openai_client()

    async def rollout(number: int) -> Trajectory:
        answer = await client.chat.completions.create(
            model=model.name, messages=MESSAGES, max_tokens=6, logprobs=True, seed=number
        )
        return Trajectory(messages_and_choices=[*MESSAGES, answer.choices[0]], reward=float(number % 2))

    groups = [TrajectoryGroup([await rollout(4 * group + i) for i in range(4)]) for group in range(2)]
    await model.log(groups, split="train")
    lines = [
        dict(line)
        async for line in backend._train_model(model, groups, art.TrainConfig(learning_rate=1e-3), {"ppo": True})
    ]
    await model.train(groups, config=art.TrainConfig(learning_rate=1e-3))
    after = await model.get_step()
    await model.delete_checkpoints()
    answer = await client.chat.completions.create(model=model.name, messages=MESSAGES, max_tokens=2)
    print(
        json.dumps(
            {
                "release": art.__file__,
                "before": before,
                "after": after,
                "lines": lines,
                "answered_by": answer.model,
                "inference": [model.inference_base_url, model.inference_api_key],
            }
        ),
        flush=True,
    )
    os._exit(0)  # all is said; some of what ART imports may wait for a network before it lets a process end


asyncio.run(main(sys.argv[1]))
