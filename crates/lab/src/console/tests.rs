use super::*;

const WARNING: &str = "\
[   12.000001] remoteproc remoteproc0: vcoproc.0 is available
[   12.345678][  T123] ------------[ cut here ]------------
[   12.345679][  T123] WARNING: CPU: 1 PID: 123 at lab_selftest.c:20 fault_warn+0x5/0x10 [lab_selftest]
[   12.345680][  T123] Call Trace:
[   12.345681][  T123]  <TASK>
[   12.345682][  T123]  do_one_initcall+0x50/0x200
[   12.345683][  T123]  </TASK>
[   12.345684][  T123] ---[ end trace 0000000000000000 ]---
[   13.000000] remoteproc remoteproc0: powering up vcoproc.0
";

const KASAN: &str = "\
[   20.000000] ==================================================================
[   20.000001] BUG: KASAN: slab-out-of-bounds in fault_kasan+0x40/0x60 [lab_selftest]
[   20.000002] Write of size 1 at addr ffff888003c0a010 by task modprobe/97
[   20.000003] Call Trace:
[   20.000004]  <TASK>
[   20.000005]  </TASK>
[   20.000006] Allocated by task 97:
[   20.000007]  __kmalloc_cache_noprof+0x12c/0x300
[   20.000008] ==================================================================
[   20.000009] virtio_rpmsg_bus virtio0: rpmsg host is online
";

#[test]
fn warning_is_reported_whole_and_nothing_else() {
    let reports = reports(WARNING);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].contains("fault_warn+0x5"), "{}", reports[0]);
    assert!(reports[0].contains("do_one_initcall"), "{}", reports[0]);
    assert!(!reports[0].contains("powering up"), "{}", reports[0]);
}

#[test]
fn kasan_report_goes_on_after_its_trace() {
    let reports = reports(KASAN);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].contains("Allocated by task 97"), "{}", reports[0]);
    assert!(!reports[0].contains("rpmsg host"), "{}", reports[0]);
}

/// Two reports of KCSAN: of a function and a module, then of Linux alone.
const KCSAN: &str = "\
[   30.000000] ==================================================================
[   30.000001] BUG: KCSAN: data-race in dev_get_stats / fault_race [lab_selftest]
[   30.000002] write to 0xffff888003c0a010 of 8 bytes by task 97 on cpu 0:
[   30.000003]  fault_race+0x40/0x60 [lab_selftest]
[   30.000004] read to 0xffff888003c0a010 of 8 bytes by task 98 on cpu 1:
[   30.000005]  dev_get_stats+0x12c/0x300
[   30.000006] ==================================================================
[   31.000000] ==================================================================
[   31.000001] BUG: KCSAN: data-race in tick_sched_timer / tick_do_update
[   31.000002] write to 0xffff888003c0b010 of 8 bytes by task 97 on cpu 0:
[   31.000003] ==================================================================
";

#[test]
fn a_data_race_of_a_module_is_reported_with_both_sides_and_one_of_linux_is_not() {
    let reports = reports(KCSAN);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].contains("on cpu 1"), "{}", reports[0]);
    assert!(!reports[0].contains("tick_"), "{}", reports[0]);
}

/// Two processors warn at the same time: the lines of one are between those of the other.
const TWO: &str = "\
[   40.000000] WARNING: CPU: 0 PID: 1 at a.c:1 first+0x1/0x2
[   40.000001] WARNING: CPU: 1 PID: 2 at b.c:2 second+0x1/0x2
[   40.000002] Call Trace:
[   40.000003]  one+0x1/0x2
[   40.000004]  </TASK>
[   40.000005] CR2: 00007fc251492000
[   40.000006] Call Trace:
[   40.000007]  two+0x1/0x2
[   40.000008]  </TASK>
";

#[test]
fn a_report_inside_of_another_keeps_its_head() {
    let reports = reports(TWO);
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(reports[0].contains("first+") && reports[0].contains("one+"), "{}", reports[0]);
    assert!(reports[1].contains("second+") && reports[1].contains("two+"), "{}", reports[1]);
}

#[test]
fn each_kind_of_report_is_found() {
    let kinds = [
        "WARNING: possible recursive locking detected",
        "WARNING: suspicious RCU usage",
        "BUG: sleeping function called from invalid context at mm/slab.c:1",
        "BUG: unable to handle page fault for address: 0000000000000008",
        "BUG kmalloc-64 (Tainted: G    B     O      ): Poison overwritten",
        "INFO: possible circular locking dependency detected",
        "INFO: task cat:99 blocked for more than 30 seconds.",
        "INFO: trying to register non-static key.",
        "kernel BUG at lab_selftest.c:1!",
        "Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1]",
        "Kernel panic - not syncing: lab_selftest",
        "general protection fault: 0000 [#1]",
        "UBSAN: array-index-out-of-bounds in a.c:1:2",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [cat:99]",
        "Call Trace:",
        "Call trace:",
        "Internal error: Oops - BUG: 00000000f2000800 [#1] SMP",
        "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000000",
    ];
    for kind in kinds {
        let console =
            format!("[    1.000000] before\n[    2.000000] {kind}\n[    3.000000] after\n");
        let reports = reports(&console);
        assert_eq!(reports.len(), 1, "{kind}");
        assert!(reports[0].starts_with(&format!("[    2.000000] {kind}")), "{}", reports[0]);
    }
}

/// A task that sleeps where it must not, of arm64: no line ends its trace. Then a fault that was injected.
const ARM64: &str = "\
[   12.000001] BUG: sleeping function called from invalid context at lab_selftest.c:90
[   12.000002] CPU: 1 UID: 0 PID: 123 Comm: modprobe Tainted: G           O       6.12.117-busbar
[   12.000003] Call trace:
[   12.000004]  dump_backtrace+0x94/0xec
[   12.000005]  fault_sleep+0x2c/0x40 [lab_selftest]
[   13.000000] remoteproc remoteproc0: powering up vcoproc.0
[   13.500000] remoteproc remoteproc0: Booting fw image vcoproc.elf, size 1000
[   14.000000] remoteproc remoteproc0: remote processor vcoproc.0 is now up
[   15.000000] FAULT_INJECTION: forcing a failure.
[   15.000001] Call trace:
[   15.000002]  dump_backtrace+0x94/0xec
";

#[test]
fn trace_without_an_end_ends_with_its_functions() {
    let found = reports(ARM64);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("fault_sleep"), "{}", found[0]);
    assert!(!found[0].contains("is now up"), "{}", found[0]);
    assert_eq!(reports(&format!("{ARM64}[   16.000000] Call trace:\n")).len(), 2);
}

#[test]
fn a_line_of_another_processor_does_not_end_a_trace() {
    let console = "\
[  793.434826] WARNING: CPU: 1 PID: 1936 at kernel/dma/debug.c:1146 check_sync+0x6bc/0xdb4
[  793.437806] Call trace:
[  793.437873]  warn_slowpath_fmt from check_sync+0x6bc/0xdb4
[  793.437870] usb 2-1: usbfs: process 1935 (busbar) did not claim interface 0 before use
[  793.437923]  check_sync from debug_dma_sync_sg_for_cpu+0x150/0x174
[  793.437939]  debug_dma_sync_sg_for_cpu from system_heap_dma_buf_begin_cpu_access+0x4c/0x60
[  793.438637] Exception stack(0xf0af5fa8 to 0xf0af5ff0)
[  793.438853] 5fa0:                   b6cbd000 00010000 00000017 40086200 becfe640 becfe640
[  793.438898] ---[ end trace 0000000000000000 ]---
";
    let found = reports(console);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("system_heap_dma_buf_begin_cpu_access"), "{}", found[0]);
}

#[test]
fn a_report_after_a_trace_without_an_end_is_its_own() {
    let after = [
        "BUG: Bad rss-counter state mm:00000000 type:MM_FILEPAGES val:1",
        "WARNING: CPU: 0 PID: 1 at mm/page_alloc.c:1 other+0x10/0x20",
        "BUG: KASAN: slab-use-after-free in other+0x10/0x20",
    ];
    for head in after {
        for between in ["", "[   13.000000] remoteproc remoteproc0: powering up vcoproc.0\n"] {
            let (begun, _) = ARM64.split_once("[   13.000000]").unwrap();
            let found = reports(&format!("{begun}{between}[   14.000000] {head}\n"));
            assert_eq!(found.len(), 2, "{found:?}");
            assert!(!found[0].contains(head) && found[1].contains(head), "{found:?}");
        }
    }
}

#[test]
fn ordinary_lines_are_no_reports() {
    let console = "\
[    0.000000] Linux version 6.12.117-busbar-debug
[    0.100000] kmemleak: Kernel memory leak detector initialized
[    0.200000] rcu: RCU calculated value of scheduler-enlistment delay is 25 jiffies.
[    1.000000] lab_selftest: loading out-of-tree module taints kernel.
[    2.000000] remoteproc remoteproc0: crash detected in vcoproc.0: type fatal error
[    3.000000] virtio_rpmsg_bus virtio0: inbound msg too big: (513, 496)
virtme-ng-init: WARNING: something of the program's
systemd-udevd[70]: BUG: no word of the kernel
";
    assert_eq!(reports(console), Vec::<String>::new());
    assert_eq!(reports(""), Vec::<String>::new());
}

#[test]
fn trace_of_an_injected_fault_is_as_ordered() {
    let console = "\
[    5.000000] FAULT_INJECTION: forcing a failure.
[    5.000001] Call Trace:
[    5.000002]  <TASK>
[    5.000003]  </TASK>
";
    assert_eq!(reports(console), Vec::<String>::new());
    let real = format!("{console}[    6.000000] Call Trace:\n");
    assert_eq!(reports(&real).len(), 1, "the next one is not");
}

#[test]
fn report_without_an_end_is_cut() {
    let console = "[    1.000000] INFO: task a:1 blocked for more than 30 seconds.\n".to_owned()
        + &"[    2.000000] and more\n".repeat(2 * LONGEST);
    let reports = reports(&console);
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].lines().count(), LONGEST);
}

const LOST_TIMER: &str = "\
[  109.789707] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:
[  109.791169] rcu: 	1-...!: (0 ticks this GP) idle=d618/0/0x0 softirq=1297/1297 fqs=0 (false positive?)
[  109.794266] NMI backtrace for cpu 1
[  109.795852] CPU: 1 UID: 0 PID: 0 Comm: swapper/1 Not tainted 6.12.117-busbar-debug #1
[  109.798179] Call Trace:
[  109.798254]  <TASK>
[  109.798308]  ? default_idle+0x9/0x10
[  109.798686]  arch_cpu_idle+0x9/0x10
[  109.798735]  do_idle+0x13a/0x1f0
[  109.798841]  </TASK>
[  109.800389] rcu: rcu_sched kthread timer wakeup didn't happen for 26251 jiffies! g-151 f0x0 ->state=0x402
";

#[test]
fn only_an_idle_processor_has_lost_a_timer() {
    assert!(has_lost_a_timer(LOST_TIMER));
    // One that spins has not, nor has one that an interrupt keeps busy.
    assert!(!has_lost_a_timer(&LOST_TIMER.replace("arch_cpu_idle", "vconv_poll")));
    assert!(!has_lost_a_timer(&LOST_TIMER.replace("<TASK>", "<IRQ>")));
    let busy = LOST_TIMER.replace("timer wakeup didn't happen", "starved");
    assert!(!has_lost_a_timer(&busy));
    assert!(has_lost_a_timer(&(busy + LOST_TIMER)));
}
