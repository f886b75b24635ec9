"""Write pictures of an episode as a film (H.264, which browsers play) or as a strip of frames."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from harness.config.errors import ConfigError, TrainingError

Picture = NDArray[np.uint8]  # (height, width, 3)
SMALLEST = 240  # pixels; a picture of less height is enlarged by a whole number
NEEDS = 'needs the extra video: pip install -e ".[video]"'


class Film:
    """A film that is written picture by picture; the file appears when it is closed.

    Args:
        path: path of the film, which ends in .mp4.
        rate: pictures a second.

    Raises:
        ConfigError: PyAV is not installed, the name has another ending, or the file cannot be written.
        TrainingError: later, if there is no room for the film.
    """

    def __init__(self, path: Path, rate: float) -> None:
        if path.suffix != ".mp4":
            raise ConfigError(f"video={path}: its name must end in .mp4")
        try:
            import av
        except ImportError:
            raise ConfigError(f"video={path} {NEEDS}") from None
        self.path, self.partial = path, path.with_name(f".{path.stem}.part.mp4")
        self._av: Any = av
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.partial.touch()  # PyAV opens the file with the first picture only
        except OSError as error:
            raise ConfigError(f"video={path} cannot be written: {error.strerror or error}") from None
        # FFmpeg takes what stands before a colon, as in 12:00.mp4, for a protocol, unless the path begins with /.
        self._container = av.open(str(self.partial.absolute()), "w", options={"movflags": "faststart"})
        self._rate = max(1, round(rate))
        self._stream: Any = None

    def add(self, picture: Picture) -> None:
        """Append a picture; all must have the size of the first."""
        picture = enlarged(picture)
        height, width = (side // 2 * 2 for side in picture.shape[:2])  # even, as H.264 stores colours for 2x2 pixels
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=self._rate, options={"crf": "23"})
            self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, "yuv420p"
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture[:height, :width]), format="rgb24")
        with self._writing():
            self._container.mux(self._stream.encode(frame))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Context around writing: the system's errors, such as a full disk, name the film."""
        try:
            yield
        except OSError as error:
            raise TrainingError(f"video={self.path} cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._writing() if error is None else contextlib.suppress(Exception):  # the first error is the reason
                if self._stream is not None:
                    self._container.mux(self._stream.encode())
                self._container.close()
                if error is None and self._stream is not None:
                    self.partial.replace(self.path)
        finally:
            self.partial.unlink(missing_ok=True)


def check_strip(path: Path) -> None:
    """Refuse a path to which no picture can be written, before anything is played.

    Raises:
        ConfigError: its ending is none of a format that can be written, or nothing can be written there.
    """
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        raise ConfigError(f"strip={path}: its name must end in .png, or in the ending of another format of pictures")
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"strip={path} cannot be written: {error.strerror or error}") from None


def save_strip(path: Path, pictures: list[Picture], count: int = 8) -> None:
    """Write some of an episode's pictures, evenly spaced from the first to the last, side by side.

    Raises:
        ConfigError: the file cannot be written.
    """
    indices = np.linspace(0, len(pictures) - 1, min(count, len(pictures))).round().astype(int)
    strip = np.concatenate([enlarged(pictures[index]) for index in indices], axis=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(strip).save(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"strip={path} cannot be written: {error}") from None


def enlarged(picture: Picture) -> Picture:
    """Return a picture enlarged to a height of at least `SMALLEST` pixels; each pixel becomes a square."""
    factor = -(-SMALLEST // picture.shape[0])
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def rendered(name: str, env: Any) -> Picture:
    """Return the picture that an environment draws of itself.

    Args:
        name: name of the environment, for messages.
        env: an environment of gymnasium, made with `render_mode="rgb_array"`, or of DeepMind Control.

    Raises:
        ConfigError: it draws nothing, or drawing does not work on this machine.
    """
    try:
        physics = getattr(getattr(env, "env", None), "physics", None)
        pixels = env.render() if physics is None else physics.render(height=SMALLEST, width=320, camera_id=0)
    except Exception as error:  # drawing libraries raise errors of many classes
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"{name} cannot be drawn here ({reason}); pictures of classic control {NEEDS}, those of MuJoCo need "
            "MUJOCO_GL=egl (libegl1) or MUJOCO_GL=osmesa (libosmesa6)"
        ) from error
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ConfigError(f"{name} draws no pictures (rgb_array)")
    picture: Picture = pixels.astype(np.uint8)
    return picture


def steps_a_second(env: Any) -> float | None:
    """Return the rate at which an environment is meant to be watched, its `render_fps`; None if it does not say."""
    rate = (getattr(env, "metadata", None) or {}).get("render_fps")
    return float(rate) if isinstance(rate, int | float) and rate > 0 else None
