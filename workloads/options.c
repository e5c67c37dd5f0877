// SPDX-License-Identifier: GPL-2.0-or-later
/* The command line of a workload, and how it dies. See common.h. */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

struct workload_args workload_args;

static const struct workload *self;

enum { OPT_HELP, OPT_COUNTERS, OPT_THREADS, OPT_SECONDS, OPT_PRINT, OPT_PIN, OPT_NO_PIN, OPT_OWN };

/* Long enough for those above, those of one workload, and the end mark. */
static struct option long_options[16] = {
	{ "help", no_argument, NULL, OPT_HELP },
	{ "counters", required_argument, NULL, OPT_COUNTERS },
	{ "threads", required_argument, NULL, OPT_THREADS },
	{ "seconds", required_argument, NULL, OPT_SECONDS },
	{ "print", no_argument, NULL, OPT_PRINT },
	{ "pin", no_argument, NULL, OPT_PIN },
	{ "no-pin", no_argument, NULL, OPT_NO_PIN },
};

static void help(void)
{
	const struct workload_option *o;

	printf("Usage: %s [--counters PATH] [--threads N] [OPTION...]\n\n%s\n",
	       program_invocation_short_name, self->about);
	printf("One operation: %s.\nRuns until SIGTERM.\n\n", self->op);
	printf("  --counters PATH  count in the file PATH\n");
	printf("  --threads N      that many workers, 1 to %d (default %u)\n", COUNTERS_MAX_SLOTS,
	       self->threads);
	printf("  --pin, --no-pin  worker i stays on CPU i, or runs anywhere (default %s)\n",
	       self->pin ? "--pin" : "--no-pin");
	printf("  --seconds S      end after S seconds\n");
	printf("  --print          print operations per second and a histogram at the end\n");
	for (o = self->options; o && o->name; o++)
		printf("  --%s %s%*s %s%s%s%s\n", o->name, o->arg,
		       (int)(13 - strlen(o->name) - strlen(o->arg)), "", o->help,
		       *o->value ? " (default " : "", *o->value ? *o->value : "",
		       *o->value ? ")" : "");
}

static _Noreturn void usage_hint(void)
{
	fprintf(stderr, "Try '%s --help'.\n", program_invocation_short_name);
	exit(2);
}

static void complain(int errno_value, const char *format, va_list args)
{
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, format, args);
	fprintf(stderr, "%s%s\n", errno_value ? ": " : "",
		errno_value ? strerror(errno_value) : "");
}

void usage_error(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	complain(0, format, args);
	va_end(args);
	usage_hint();
}

void die(int errno_value, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	complain(errno_value, format, args);
	va_end(args);
	exit(1);
}

unsigned long number(const char *option, const char *text, unsigned long min, unsigned long max)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno && n >= min && n <= max)
		return n;
	usage_error("--%s takes a number from %lu to %lu, not '%s'", option, min, max, text);
}

void parse_args(const struct workload *w, int argc, char **argv)
{
	const struct workload_option *o;
	struct option *next = &long_options[OPT_OWN];
	int c;

	self = w;
	for (o = self->options; o && o->name; o++)
		*next++ = (struct option){ o->name, required_argument, NULL,
					   OPT_OWN + (int)(o - self->options) };
	workload_args.threads = self->threads;
	workload_args.pin = self->pin;
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case OPT_HELP:
			help();
			exit(0);
		case OPT_COUNTERS:
			workload_args.counters = optarg;
			break;
		case OPT_THREADS:
			workload_args.threads = number("threads", optarg, 1, COUNTERS_MAX_SLOTS);
			break;
		case OPT_SECONDS:
			workload_args.seconds = number("seconds", optarg, 1, 86400);
			break;
		case OPT_PRINT:
			workload_args.print = true;
			break;
		case OPT_PIN:
		case OPT_NO_PIN:
			workload_args.pin = c == OPT_PIN;
			break;
		case '?':
			/* getopt_long() has said what is wrong. */
			usage_hint();
		default:
			*self->options[c - OPT_OWN].value = optarg;
		}
	}
	if (optind < argc)
		usage_error("unexpected argument '%s'", argv[optind]);
}
