// GET /api/live: what the server is at. All counters grow from the server's start; rates are
// differences of two snapshots.
import { request } from './server';

export interface ExpertUses {
  layers: number[];
  numExperts: number;
  uses: number[][]; // [layer][expert]
}

export interface LiveSnapshot {
  time: number; // seconds
  uptimeSeconds: number;
  model: string;
  device: string;
  tokens: { prompt: number; cached: number; answer: number };
  requests: { done: number; failed: number; cancelled: number };
  sequences: { running: number; waiting: number; paused: number; limit: number };
  pages: { total: number; used: number; prefix: number };
  steps: number;
  stepSeconds: number | null; // null: the server does not tell
  stages: { name: string; seconds: number }[];
  experts: ExpertUses | null; // null: none, or the server does not tell
}

type Json = Record<string, unknown>;

function object(value: unknown): Json {
  return typeof value === 'object' && value !== null ? (value as Json) : {};
}

function number(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}

function numbers<Name extends string>(value: unknown, ...names: Name[]): Record<Name, number> {
  const given = object(value);
  return Object.fromEntries(names.map((name) => [name, number(given[name])])) as Record<
    Name,
    number
  >;
}

function readExperts(value: unknown): ExpertUses | null {
  const given = object(value);
  const numExperts = number(given.num_experts);
  if (!Array.isArray(given.layers) || !Array.isArray(given.uses) || numExperts < 1) return null;
  const layers = given.layers.map(number);
  const uses = layers.map((_, i) => {
    const row: unknown = (given.uses as unknown[])[i];
    return Array.from({ length: numExperts }, (_, e) => number(Array.isArray(row) ? row[e] : 0));
  });
  return layers.length > 0 ? { layers, numExperts, uses } : null;
}

export function snapshotOf(value: unknown): LiveSnapshot {
  const given = object(value);
  const stages = Array.isArray(given.stages) ? given.stages.map(object) : [];
  return {
    time: number(given.time),
    uptimeSeconds: number(given.uptime_seconds),
    model: String(given.model ?? ''),
    device: String(given.device ?? ''),
    tokens: numbers(given.tokens, 'prompt', 'cached', 'answer'),
    requests: numbers(given.requests, 'done', 'failed', 'cancelled'),
    sequences: numbers(given.sequences, 'running', 'waiting', 'paused', 'limit'),
    pages: numbers(given.pages, 'total', 'used', 'prefix'),
    steps: number(given.steps),
    stepSeconds: typeof given.step_seconds === 'number' ? given.step_seconds : null,
    stages: stages.map((stage) => ({ name: String(stage.name), seconds: number(stage.seconds) })),
    experts: readExperts(given.experts),
  };
}

export async function readLive(signal: AbortSignal): Promise<LiveSnapshot> {
  const response = await request('api/live', { signal });
  return snapshotOf(await response.json());
}
