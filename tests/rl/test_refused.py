"""What both agents refuse before the first step, in one line that names the option."""

import pytest

from harness.config.errors import ConfigError
from rl.dqn.task import Task as DqnTask
from rl.sac.task import Task as SacTask
from tests.programs import ATARI, DQN, SAC, Program

TASKS = {"dqn": DqnTask, "sac": SacTask}
REFUSED: list[tuple[Program, str, str]] = [
    (DQN, "midpoint=400", "must come before total_steps=400"),
    (DQN, "learning_starts=300", "learning_starts=300 must be at least num_envs=2 and less than midpoint=200"),
    (DQN, "midpoint=380 learning_starts=50 boundary.replay=new", "must be less than 18 after the midpoint"),
    (DQN, "env.game=FrozenLake-v1", "observations must be a vector of numbers, not Discrete"),
    (DQN, "env.game=NoSuch-v0", "env.game=NoSuch-v0"),
    (DQN, "env.game=Pendulum-v1", "discrete"),
    (ATARI, "env.game=asterisk", r"env.game=asterisk is unknown; near it: .*asterix"),
    (ATARI, "env.game=xyzzyxyzzy", "ale-py knows"),
    (ATARI, "env.game=combat", "env.game=combat is a game for two players"),
    (ATARI, "env.game=ALE/Pong-v5", "ALE/Pong-v5 is an id of gymnasium, .*: here it is env.game=pong, with those of"),
    (ATARI, "env.game=MsPacmanNoFrameskip-v4", "here it is env.game=ms_pacman, with"),
    (ATARI, "env.game=Breakout-ram-v0", "here it is env.game=breakout, with"),
    (
        DQN,
        "env.game=ALE/Pong-v5",
        "env.game=ALE/Pong-v5: .*; Atari is played by rl.dqn with env=asterix",
    ),
    (DQN, "env.game=PongNoFrameskip-v4", "PongNoFrameskip-v4: .*; Atari is played by rl.dqn with env=asterix"),
    (DQN, "replay.capacity=4", "replay.capacity=4 is too small"),
    (DQN, "replay.capacity=1000000000000", "replay.capacity=1000000000000 needs .* fits"),
    (DQN, "boundary.target=away", "accepted: auto, copy, keep, act, follow"),
    (DQN, "method=pi boundary.optimizer=keep", "needs boundary.optimizer=new"),
    (DQN, "method=muon boundary.optimizer=keep", "needs boundary.optimizer=new"),
    (DQN, "method=pi boundary.target=act", "take boundary.target=keep or copy"),
    (DQN, "method=redo boundary.target=follow", "projects no weights that a target could follow"),
    (DQN, "method=dash boundary.target=act", "target networks have none: boundary.target=copy or keep"),
    (SAC, "env_steps=100", "env_steps=100 makes phases of 50 decisions"),
    (SAC, "num_envs=4 random_steps=97 env_steps=200", "makes phases of 100 decisions: they must be longer than"),
    (SAC, "boundary.target=act", "boundary.target=act is unknown; accepted: auto, copy, keep"),
    (SAC, "networks.kind=cnn", "networks.kind=cnn is unknown; accepted: simba, mlp"),
    (SAC, "env.task=Hoper-v5", "env.task=Hoper-v5: .*Did you mean: `Hopper`"),
    (SAC, "env.task=Humanoid-v9", "Humanoid-v9: .*`v5`"),
    (SAC, "env.task=CartPole-v1", "env.task=CartPole-v1: SAC needs a task with continuous actions"),
    (SAC, "env=breakout", "env=breakout is not for sac; accepted: ant, "),
    (SAC, "num_envs=1010", "replay_size=1000 must be at least num_envs=1010"),
    (SAC, "replay_size=1_000_000_000_000", "replay_size=1000000000000 needs .* fits"),
]
CONTROL = "benchmark=continual_control"
DQN_STREAM = f"{CONTROL} benchmark.tasks=4 benchmark.steps=100 benchmark.size=6 total_steps=400 learning_starts=20 "
SAC_STREAM = f"{CONTROL} benchmark.tasks=3 benchmark.steps=100 env_steps=300 random_steps=20 env=hopper "
IMAGES = f"{CONTROL} benchmark.tasks=2 benchmark.steps=120 total_steps=240 benchmark.size=6"
STREAMS: list[tuple[Program, str, str]] = [
    (DQN, "benchmark.sequence=[CartPole-v1,Acrobot-v1]", "one number of actions, got CartPole-v1 2, Acrobot-v1 3"),
    (DQN, "benchmark.size=3", "benchmark.size=3 is less than the 4 numbers of env=cartpole"),
    (
        DQN,
        "benchmark.physics={friction:[1.0,2.0]}",
        "benchmark.physics changes environments of MuJoCo, which rl.sac alone has",
    ),
    (DQN, "total_steps=500", "total_steps=500 is not benchmark.tasks=4 times benchmark.steps=100"),
    (DQN, "learning_starts=100", "learning_starts=100 must be at least num_envs=2 and less than benchmark.steps=100"),
    (DQN, "benchmark.boundaries=hidden method=fire", "method=fire cannot act at them; say when it acts"),
    (DQN, "benchmark.steps=101 total_steps=404", "benchmark.steps=101 must be a multiple of num_envs=2"),
    (SAC, "env_steps=400", "env_steps=400 is not benchmark.tasks=3 times benchmark.steps=100"),
    (SAC, "random_steps=100", "benchmark.steps=100 makes phases of 100 decisions"),
    (SAC, "benchmark.sequence=[Hopper-v5,Jumper-v5]", "env.task=Jumper-v5: Environment"),
    (SAC, "env.task=Pendulum-v1 benchmark.physics={gravity:[1.0,2.0]}", "MuJoCo.s worlds, and .*Pendulum.* is none"),
]
REFUSED += [(ATARI, IMAGES, "size=null benchmark.permute=false benchmark.signs=false benchmark.offset=0")]
REFUSED += [(program, (DQN_STREAM if program is DQN else SAC_STREAM) + more, said) for program, more, said in STREAMS]


@pytest.mark.parametrize(("program", "options", "said"), REFUSED, ids=lambda value: getattr(value, "name", None))
def test_refused(program: Program, options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        TASKS[program.name].from_config(program.compose(*options.split()))
    assert "\n" not in str(error.value)
