"""GPUs, links and disks by name: peaks as their makers give them, without sparsity."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. tflops: dense, by the bits of a value. hbm_gb: memory; host_gb_s: one way between
    it and its host's memory, as measured or, where it was not, 85 % of the peak. efficiency: of
    ``tflops`` that prefill reaches."""

    name: str
    tflops: dict[int, float]
    hbm_gb: float
    host_gb_s: float
    efficiency: float
    source: str

    def flops_s(self, bits: int) -> float:
        """Return the operations a second that prefill reaches with values of so many bits."""
        known = [each for each in self.tflops if each >= bits]
        return self.tflops[min(known)] * 1e12 * self.efficiency


@dataclass(frozen=True, slots=True)
class Link:
    """A way to the pool. gb_s: 10^9 bytes a second in one direction; share: of that which loads
    reach."""

    name: str
    gb_s: float
    share: float = 0.85


# H200: prefill of 32K, 80K and 120K tokens of Llama-3.1-8B took 1.17, 4.52 and 8.85 s, 65 to 67 %
# of the peak; its bus was measured at 55 GB/s (docs/benchmarks.md). For the others the same share.
GPUS = {
    each.name: each
    for each in (
        Gpu("a100", {16: 312.0}, 80.0, 25.0, 0.6, "NVIDIA A100 80GB datasheet; PCIe 4 x16"),
        Gpu("h200", {16: 989.0, 8: 1979.0}, 141.0, 55.0, 0.65, "NVIDIA H200 datasheet; measured"),
        Gpu(
            *("gb200", {16: 2500.0, 8: 5000.0, 4: 10000.0}, 186.0, 190.0, 0.5),
            "NVIDIA GB200 NVL72 datasheet, one GPU; half of a Grace's 450 GB/s one way",
        ),
    )
}
LINKS = {each.name: each for each in (Link(f"{gbit}G", gbit / 8) for gbit in (25, 100, 200, 400))}
NVME_GB_S = 6.0
"""Sequential reads of one PCIe 4 drive, as its kind's data sheets say (Samsung PM9A3: 6.9)."""
