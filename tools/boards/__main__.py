"""Write the boards: `python -m tools.boards`."""

from tools.boards.boards import BOARDS
from tools.boards.grafana import FOLDER, text

if __name__ == "__main__":
    for board in BOARDS:
        (FOLDER / f"{board.name}.json").write_text(text(board), encoding="utf-8")
