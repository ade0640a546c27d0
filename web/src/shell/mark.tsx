// Hillstar's mark: a hummingbird in flight. The same drawing as public/mark.svg.
export function Mark({ class: name }: { class?: string }) {
  return (
    <svg class={`mark ${name ?? ''}`} viewBox="0 0 64 64" aria-hidden="true" focusable="false">
      <path class="mark-wing" d="M30 32C23 25 15 13 14 3c10 4 21 14 25 25z" />
      <path class="mark-wing-far" d="M36 27C35 18 38 8 44 2c4 9 3 19-1 26z" />
      <path class="mark-body" d="M62 21l-13 3.5c-1.5-3.5-5.5-5-9.5-3.5-5 2-8.5 8-13.5 13.5C20 41 12 47 4 58c9-3 15-5 20-8l-2 9c8-5 13-10 17-16 5-6 9-9 11-16z" />
      <path class="mark-throat" d="M49.5 27c-1.5 6-4.5 9.5-9.5 15-2.5-4-1.5-10 2-13.5 2-2 5-2 7.5-1.5z" />
      <circle class="mark-eye" cx="44.5" cy="24.5" r="1.5" />
    </svg>
  );
}
