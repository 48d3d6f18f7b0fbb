"""All targets."""

from __future__ import annotations

from tests.fuzz.board_file import BoardFile
from tests.fuzz.config_input import CommandLine, Config
from tests.fuzz.election_answers import EtcdAnswers, LeaseAnswers
from tests.fuzz.files_disk import IndexLog, ShelfFiles
from tests.fuzz.files_segment import SegmentFile, Takeover
from tests.fuzz.http_bodies import EngineEvents, Operators, Requests, TransferParams
from tests.fuzz.http_servers import MasterHttp, RouterHttp
from tests.fuzz.mooncake_input import MooncakeFlags, MooncakeSetup
from tests.fuzz.target import Target
from tests.fuzz.wire_client import Answers, Believer
from tests.fuzz.wire_master import MasterWire
from tests.fuzz.wire_node import DataFrames, DataPort

TARGETS: tuple[type[Target], ...] = (
    MasterWire,
    Answers,
    Believer,
    DataFrames,
    DataPort,
    SegmentFile,
    Takeover,
    IndexLog,
    ShelfFiles,
    BoardFile,
    Config,
    CommandLine,
    Requests,
    Operators,
    TransferParams,
    EngineEvents,
    EtcdAnswers,
    LeaseAnswers,
    MooncakeFlags,
    MooncakeSetup,
    MasterHttp,
    RouterHttp,
)
